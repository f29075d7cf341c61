"""Whatever a quantization's configuration says, it is read or refused: nothing else."""

import copy
import json

import pytest
import torch

from enginebay.errors import ModelError
from enginebay.plugins.formats.quantization_config import find_quantization

ODD = (None, True, False, 0, -1, 3, 4.0, 8.0, "", "odd", "re:[", [], [1], ["odd"], {}, {"a": 1})
INPUTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "group_size": None}
GROUP = {"targets": ["Linear"], "weights": WEIGHTS | {"strategy": "channel"}, "format": None}
ENTRIES = {
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "sparsity_config": None,
        "config_groups": {"group_0": GROUP | {"input_activations": INPUTS}},
    },
    "gptq": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 64,
        "sym": True,
        "desc_act": False,
        "dynamic": None,
        "checkpoint_format": "gptq",
        "pack_dtype": "int32",
        "is_marlin_format": False,
    },
    "awq": {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 64,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": None,
        "backend": None,
    },
}


def paths(entry, prefix=()):
    """Every key of a nested table, by its way from the top."""
    for key, value in entry.items():
        yield (*prefix, key)
        if isinstance(value, dict):
            yield from paths(value, (*prefix, key))


def with_value(entry, path, value):
    changed = copy.deepcopy(entry)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


def parts_of(method):
    def convert(module, weight):
        if module in ("model.embed_tokens", "lm_head"):
            return None
        rows, columns = weight.shape
        if method == "compressed-tensors":
            codes = torch.ones(rows, columns, dtype=torch.int8)
            return {"weight": codes, "weight_scale": torch.ones(rows, 1)}, weight
        codes = (columns, rows // 8) if method == "awq" else (columns // 8, rows)
        middle = int.from_bytes(b"\x77" * 4, "little")
        packed = {
            "qweight": torch.zeros(codes, dtype=torch.int32),
            "qzeros": torch.full((columns // 64, rows // 8), middle, dtype=torch.int32),
            "scales": torch.ones(columns // 64, rows),
        }
        return packed, weight

    return convert


@pytest.mark.parametrize("method", ENTRIES)
def test_odd_values_are_read_or_refused(quantized, method):
    """Each entry takes each odd value: no crash, and a refusal names where it stands."""
    model = quantized(ENTRIES[method], parts_of(method), num_hidden_layers=1)
    config = json.loads((model.folder / "config.json").read_text())
    outcomes, messages = [], []
    model.open().load("model.layers.0.mlp.up_proj.weight")
    for path in paths(ENTRIES[method]):
        for value in ODD:
            entry = with_value(ENTRIES[method], path, value)
            text = json.dumps(config | {"quantization_config": entry})
            (model.folder / "config.json").write_text(text)
            try:
                model.open().load("model.layers.0.mlp.up_proj.weight")
                outcomes.append(True)
            except ModelError as error:
                outcomes.append(False)
                messages.append(str(error))
    assert set(outcomes) == {True, False}
    assert all(str(model.folder) in message for message in messages)


def test_an_entry_that_is_no_table(tmp_path):
    """It is neither dropped nor a crash."""
    with pytest.raises(ModelError, match=r"config\.json: quantization_config is 'int8'; .*table"):
        find_quantization(tmp_path, {"quantization_config": "int8"})
    assert find_quantization(tmp_path, {"quantization_config": None}) is None
