"""compressed-tensors checkpoints that can't be read right: each is refused by name."""

import pytest
import torch

from enginebay.errors import ModelError

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
Q = "model.layers.0.self_attn.q_proj"
DYNAMIC = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}


def groups(inputs=None, **weights):
    parts = {"weights": WEIGHTS | weights, "input_activations": inputs}
    return {"group_0": {"targets": ["Linear"], **parts}}


def entry(config_groups=None, **entries):
    usual = {"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": [HEAD]}
    return usual | {"config_groups": config_groups or groups(DYNAMIC)} | entries


def int8(module, weight):
    if module in (EMBEDDING, HEAD):
        return None
    codes = torch.full(weight.shape, 3, dtype=torch.int8)
    return {"weight": codes, "weight_scale": torch.ones(len(weight), 1)}, weight


@pytest.fixture
def model(quantized):
    return quantized(entry(), int8, num_hidden_layers=1)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            {"quant_method": "fp8"},
            r"config\.json: .*quant_method is 'fp8'; what can be read",
        ),
        ({"quant_method": None}, r"quant_method is None; what can be read"),
        ({"format": "float-quantized"}, r"\.format is 'float-quantized'; what can be read is int-"),
        ({"format": "nvfp4-pack-quantized"}, r"format is 'nvfp4-pack-quantized'"),
        ({"format": "marlin-24"}, r"format is 'marlin-24'"),
        ({"format": "dense"}, r"format is 'dense'"),
        ({"kv_cache_scheme": {"num_bits": 8}}, r"kv_cache_scheme is \{'num_bits': 8\}; that can't"),
        ({"transform_config": {"config_groups": {"u": {}}}}, r"transform_config is \{"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, r"sparsity_config is \{"),
        ({"some_day": 1}, r"some_day is 1; that can't be read"),
        ({"config_groups": {"W8A8": ["Linear"]}}, r"config_groups\.W8A8 is \['Linear'\]"),
        ({"config_groups": {}}, r"config_groups is \{\}; it must be a table"),
        ({"ignore": "lm_head"}, r"ignore is 'lm_head'; it must be a list"),
        ({"ignore": ["re:("]}, r"ignore is 're:\('; .*pattern"),
    ],
)
def test_entries(model, entries, message):
    """Case 72: an unknown method, another layout, anything that changes results."""
    model.change(**entries)
    with pytest.raises(ModelError, match=message):
        model.open()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"type": "float"}, r"group_0\.weights\.type is 'float'; that can't be read"),
        ({"num_bits": 3}, r"weights\.num_bits is 3"),
        ({"strategy": "block", "block_structure": [128, 128]}, r"weights\.(strategy|block_st)"),
        ({"strategy": "group"}, r"weights\.group_size is None; groups need"),
        ({"strategy": "group", "group_size": 48}, r"128 columns, which are not in groups of 48"),
        ({"symmetric": "no"}, r"weights\.symmetric is 'no'"),
        ({"symmetric": False}, r"weight_zero_point' is missing, which the scheme 'channel'"),
        ({"dynamic": True}, r"weights\.dynamic is True"),
        ({"strategy": "tensor"}, r"weight_scale' has shape \[64, 1\].*needs \[1\] or \[\]"),
        ({"strategy": "group", "group_size": 32}, r"weight_scale' has shape \[64, 1\].*\[64, 4\]"),
    ],
)
def test_weights(model, weights, message):
    """Case 72: weights in a way that can't be read, or that the tensors don't have."""
    model.change(config_groups=groups(None, **weights))
    with pytest.raises(ModelError, match=message):
        model.open()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"symmetric": False}, r"input_activations\.symmetric is False; that can't be read"),
        ({"num_bits": 4}, r"input_activations\.num_bits is 4"),
        ({"type": "float"}, r"input_activations\.type is 'float'"),
        ({"strategy": "tensor"}, r"input_activations\.strategy is 'tensor'; with dynamic scales"),
        ({"dynamic": False}, r"input_activations\.strategy is 'token'; with static scales"),
        ({"dynamic": "local"}, r"input_activations\.strategy is 'token'"),
        ({"strategy": "tensor", "dynamic": False}, r"input_scale' is missing"),
    ],
)
def test_activations(model, inputs, message):
    """Case 72: asymmetric and others; static ones whose scale is not there."""
    model.change(config_groups=groups(DYNAMIC | inputs))
    with pytest.raises(ModelError, match=message):
        model.open()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_scale": None}, r"q_proj\.weight_scale' is missing"),
        ({"weight_scale": torch.ones(63, 1)}, r"has shape \[63, 1\] .*needs \[64, 1\] or \[64\]"),
        ({"weight": torch.ones(64, 64)}, r"stored as F32, but .*'ignore' if it is plain"),
        ({"weight": torch.ones(64, 64).short()}, r"q_proj\.weight' has .*type I16.*needs .*I8"),
        ({"weight": None}, r"q_proj\.weight_scale' of type F32 belongs to a quantized weight"),
        ({"weight_zero_point": torch.ones(64, 1).char()}, r"is not 0, but the scheme is symmetric"),
        ({"weight_scale": torch.full((64, 1), torch.inf)}, r"a scale that is no number"),
    ],
)
def test_parts_that_do_not_fit(model, rewrite, changes, message):
    """Each is named with what was found and what was expected."""
    rewrite(model.folder, {f"{Q}.{end}": tensor for end, tensor in changes.items()})
    with pytest.raises(ModelError, match=message):
        model.open().load(f"{Q}.weight")


@pytest.mark.parametrize("scale", [torch.nan, torch.inf, 0.0, -1.0])
def test_case_72_an_activation_scale_must_be_positive(model, rewrite, scale):
    """Case 72: with NaN or 0 every token would be the same."""
    model.change(config_groups=groups(DYNAMIC | {"strategy": "tensor", "dynamic": False}))
    modules = {name.rpartition(".")[0] for name, value in model.values.items() if value.ndim == 2}
    scales = {f"{each}.input_scale": torch.tensor(scale) for each in modules - {EMBEDDING, HEAD}}
    rewrite(model.folder, scales)
    with pytest.raises(ModelError, match=r"input_scale' (is|has)"):
        model.open().stored(f"{Q}.weight")


def test_an_activation_zero_point_must_be_0(model, rewrite):
    """A symmetric scheme has none; one that is stored all the same is not dropped."""
    model.change(config_groups=groups(DYNAMIC | {"strategy": "tensor", "dynamic": False}))
    modules = {name.rpartition(".")[0] for name, value in model.values.items() if value.ndim == 2}
    scales = {f"{each}.input_scale": torch.ones(1) for each in modules - {EMBEDDING, HEAD}}
    rewrite(model.folder, scales | {f"{Q}.input_zero_point": torch.zeros(1).char()})
    assert model.open().stored(f"{Q}.weight").input_scale.tolist() == [1.0]
    rewrite(model.folder, {f"{Q}.input_zero_point": torch.ones(1).char()})
    with pytest.raises(ModelError, match="input_zero_point' is not 0"):
        model.open().stored(f"{Q}.weight")


def test_codes_of_too_many_bits(model, rewrite):
    """4-bit weights in int8 tensors may not leave -8 .. 7."""
    model.change(config_groups=groups(num_bits=4))
    model.open().load(f"{Q}.weight")
    rewrite(model.folder, {f"{Q}.weight": torch.full((64, 64), 8, dtype=torch.int8)})
    with pytest.raises(ModelError, match=r"q_proj\.weight' has codes of more than 4 bits"):
        model.open().load(f"{Q}.weight")


def test_codes_that_nothing_announces(model):
    """Without an entry, codes would load as numbers; in an ignored module too."""
    model.change(ignore=[HEAD, Q])
    with pytest.raises(ModelError, match=r"q_proj\.weight.*belongs to .* leaves it plain"):
        model.open()
    model.change(quant_method=None)
    config = model.folder / "config.json"
    config.write_text(config.read_text().replace('"quantization_config"', '"something_else"'))
    with pytest.raises(ModelError, match=r"but config\.json has no 'quantization_config'"):
        model.open()


def test_an_entry_that_quantizes_nothing(quantized):
    """A model of plain numbers that says it is quantized is not believed."""
    plain = quantized(entry(ignore=["re:.*"]), lambda module, weight: None, num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"no tensor of .* is quantized; remove the entry"):
        plain.open()
    plain.change(quant_method=["gptq"])
    with pytest.raises(ModelError, match=r"quant_method is \['gptq'\]"):
        plain.open()


def test_other_methods_by_file(quantized):
    """Case 72: a file beside config.json that names a method nobody reads."""
    plain = quantized(None, lambda module, weight: None, num_hidden_layers=1)
    (plain.folder / "hf_quant_config.json").write_text('{"producer": {"name": "modelopt"}}')
    with pytest.raises(ModelError, match=r"hf_quant_config\.json: quant_method is 'modelopt'"):
        plain.open()
