"""AWQ checkpoints: the order in a word, zero points, and lists that must be true."""

import json

import pytest
import torch

from enginebay.errors import ModelError
from enginebay.hookspecs.format import StoredForm
from enginebay.plugins.quant.int4_weight import Int4Weight, Options

SKIPPED = ("model.embed_tokens", "lm_head")
V, DOWN = "model.layers.1.self_attn.v_proj", "model.layers.0.mlp.down_proj"
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def entry(**entries):
    usual = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
    return usual | {"version": "gemm", "modules_to_not_convert": None} | entries


def in_word_order(codes):
    """Of each eight neighbours, those at even places first."""
    return codes.reshape(len(codes), -1, 8)[:, :, ORDER].reshape(len(codes), -1)


def convert_with(pack, skip=SKIPPED, size=32):
    noise = torch.Generator().manual_seed(1)

    def convert(module, weight):
        if module in skip:
            return None
        rows, columns = weight.shape
        groups = 1 if size == -1 else columns // size
        codes = torch.randint(0, 16, (columns, rows), generator=noise)
        zeros = torch.randint(0, 16, (groups, rows), generator=noise)
        scales = (torch.rand(groups, rows, generator=noise) / 16).half()
        order = torch.arange(columns) * groups // columns
        values = (codes - zeros[order]).double() * scales.double()[order]
        parts = {
            "qweight": pack(in_word_order(codes), 4),
            "qzeros": pack(in_word_order(zeros), 4),
            "scales": scales,
        }
        return parts, values.T.float().contiguous()

    return convert


@pytest.mark.parametrize("size", [32, -1])
def test_values_codes_and_logits(quantized, pack, size):
    """Case 72: every weight by the formula, bit for bit, and the logits of those values."""
    model = quantized(entry(group_size=size), convert_with(pack, size=size))
    checkpoint = model.open()
    assert set(checkpoint.tensors) == set(model.values)
    for name, value in model.values.items():
        assert checkpoint.tensors[name].shape == tuple(value.shape)
        assert torch.equal(checkpoint.load(name), value), name
    for module, columns in ((V, 64), (DOWN, 128)):
        stored = checkpoint.stored(f"{module}.weight")
        width = columns if size == -1 else size
        assert stored.form == StoredForm(bits=4, group_size=width, offsets=True)
        assert torch.equal(stored.dequantized(), model.values[f"{module}.weight"])
        assert (int(stored.codes.min()), int(stored.codes.max())) == (0, 15)
    assert torch.equal(*model.logits())


def test_case_72_codes_are_multiplied_as_they_are(quantized, pack):
    """Case 72: int4-weight takes them, and its logits are those of the values within 1e-3."""
    quantizer = Int4Weight(Options(head="float"))
    ours, floats = quantized(entry(), convert_with(pack)).logits(quantizer)
    assert set(quantizer.report().float_layers) == {"lm_head"}
    assert float((ours - floats).abs().max()) < 1e-3 * float(floats.abs().max())


def test_modules_left_plain(quantized, pack):
    """Case 72: a part of a name in the list leaves all that have it plain."""
    skip = (*SKIPPED, V, "model.layers.0.self_attn.v_proj")
    model = quantized(entry(modules_to_not_convert=["v_proj"]), convert_with(pack, skip))
    assert model.open().form(f"{V}.weight") is None
    assert torch.equal(*model.logits())


def test_lists_that_are_not_true(quantized, pack):
    """A listed module with codes, and one with numbers that is not listed."""
    model = quantized(entry(modules_to_not_convert=["v_proj"]), convert_with(pack))
    with pytest.raises(ModelError, match=r"v_proj\.qweight' disagrees .* \['v_proj'\]; correct"):
        model.open()


def test_numbers_where_codes_are_promised(quantized, pack):
    """A matrix of a layer must be in the list to be plain."""
    model = quantized(entry(), convert_with(pack, (*SKIPPED, V)))
    with pytest.raises(ModelError, match=r"v_proj\.weight' disagrees .* \[\]; correct"):
        model.open()


def test_a_configuration_of_its_own(quantized, pack):
    """Case 72: older tools wrote quant_config.json, with other names."""
    model = quantized(entry(), convert_with(pack))
    text = json.loads((model.folder / "config.json").read_text())
    text.pop("quantization_config")
    (model.folder / "config.json").write_text(json.dumps(text))
    own = {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"}
    (model.folder / "quant_config.json").write_text(json.dumps(own))
    assert torch.equal(model.open().load(f"{V}.weight"), model.values[f"{V}.weight"])


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"bits": 8}, r"quantization_config\.bits is 8; what can be read is 4"),
        ({"version": "gemv"}, r"version is 'gemv'; what can be read is 'gemm'"),
        ({"backend": "llm-awq"}, r"backend is 'llm-awq'"),
        ({"zero_point": False}, r"zero_point is False"),
        ({"group_size": None}, r"group_size is None; it must be a number of columns"),
        ({"group_size": 48}, r"128 columns, which are not in groups of 48"),
        ({"group_size": 64}, r"qzeros' has shape \[4, 8\].*needs \[2, 8\]"),
        ({"modules_to_not_convert": "v_proj"}, r"modules_to_not_convert is 'v_proj'; .*a list"),
    ],
)
def test_what_is_refused(quantized, pack, entries, message):
    """Case 72: an option that can't be honoured stops the start and is named."""
    model = quantized(entry(**entries), convert_with(pack), num_hidden_layers=1)
    with pytest.raises(ModelError, match=message):
        model.open()
