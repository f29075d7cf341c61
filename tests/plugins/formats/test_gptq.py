"""GPTQ checkpoints: both layouts, 4 and 8 bits, columns in and out of order."""

import json

import pytest
import torch

from enginebay.errors import ModelError
from enginebay.hookspecs.format import StoredForm
from enginebay.plugins.quant.int4_weight import Int4Weight, Options

SKIPPED = ("model.embed_tokens", "lm_head")
Q = "model.layers.0.self_attn.q_proj"


def entry(bits=4, size=32, **entries):
    usual = {"quant_method": "gptq", "bits": bits, "group_size": size, "sym": False}
    return usual | {"desc_act": False, "damp_percent": 0.01, "true_sequential": True} | entries


def convert_with(pack, bits=4, size=32, symmetric=False, less_one=True, shuffled=False):
    """Codes of any value, with float16 scales, packed as AutoGPTQ packs them."""
    noise = torch.Generator().manual_seed(1)

    def convert(module, weight):
        if module in SKIPPED:
            return None
        rows, columns = weight.shape
        groups = 1 if size == -1 else columns // size
        top = 2**bits
        codes = torch.randint(0, top, (columns, rows), generator=noise)
        zeros = torch.randint(0, top, (groups, rows), generator=noise)
        zeros = torch.full_like(zeros, top // 2) if symmetric else zeros
        scales = (torch.rand(groups, rows, generator=noise) / top).half()
        order = torch.arange(columns) * groups // columns
        order = order[torch.randperm(columns, generator=noise)] if shuffled else order
        values = (codes - zeros[order]).double() * scales.double()[order]
        parts = {
            "qweight": pack(codes.T, bits).T,
            "qzeros": pack((zeros - 1) % top if less_one else zeros, bits),
            "scales": scales,
            "g_idx": order.int(),
        }
        return parts, values.T.float().contiguous()

    return convert


def check(model, form):
    checkpoint = model.open()
    assert set(checkpoint.tensors) == set(model.values)
    for name, value in model.values.items():
        assert checkpoint.tensors[name].shape == tuple(value.shape)
        assert torch.equal(checkpoint.load(name), value), name
    assert checkpoint.form(f"{Q}.weight") == form
    if form is not None:
        stored = checkpoint.stored(f"{Q}.weight")
        assert torch.equal(stored.dequantized(), model.values[f"{Q}.weight"])
    assert torch.equal(*model.logits())
    return checkpoint


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("size", "symmetric"), [(32, False), (-1, False), (16, True)])
def test_zero_points_less_one(quantized, pack, bits, size, symmetric):
    """Case 72: the usual layout; a zero point of 0 is stored as the greatest code."""
    model = quantized(entry(bits, size, sym=symmetric), convert_with(pack, bits, size, symmetric))
    width = 64 if size == -1 else size
    form = StoredForm(bits=bits, group_size=width, offsets=not symmetric)
    info = check(model, form).tensors[f"{Q}.weight"]
    groups = 64 // width
    beside = groups * 64 * 2 + groups * 64 * bits // 8 + 64 * 4
    assert (info.dtype, info.metadata_bytes) == (f"int{bits}", beside)
    assert info.num_bytes == 64 * 64 * bits // 8 + beside


@pytest.mark.parametrize("symmetric", [False, True])
def test_case_72_codes_are_multiplied_as_they_are(quantized, pack, symmetric):
    """Case 72: int4-weight takes them, and its logits are those of the values within 1e-3."""
    quantizer = Int4Weight(Options(head="float"))
    model = quantized(entry(sym=symmetric), convert_with(pack, symmetric=symmetric))
    ours, floats = model.logits(quantizer)
    assert set(quantizer.report().float_layers) == {"lm_head"}
    assert float((ours - floats).abs().max()) < 1e-3 * float(floats.abs().max())


@pytest.mark.parametrize("key", ["checkpoint_format", "format"])
def test_zero_points_as_they_are(quantized, pack, key):
    """Case 72: the second layout, under both names of its entry."""
    model = quantized(entry(**{key: "gptq_v2"}), convert_with(pack, less_one=False))
    check(model, StoredForm(bits=4, group_size=32, offsets=True))


def test_columns_out_of_order(quantized, pack):
    """Case 72: with act-order each column has its own group's scale; codes are not offered."""
    model = quantized(entry(desc_act=True), convert_with(pack, shuffled=True))
    checkpoint = check(model, None)
    with pytest.raises(ModelError, match="only its values"):
        checkpoint.stored(f"{Q}.weight")


def test_act_order_with_one_group_keeps_codes(quantized, pack):
    """Out of order or not, there is one scale."""
    model = quantized(entry(size=-1, desc_act=True), convert_with(pack, size=-1, shuffled=True))
    check(model, StoredForm(bits=4, group_size=64, offsets=True))


def test_a_configuration_of_its_own(quantized, pack):
    """Case 72: older tools wrote quantize_config.json, which names no method."""
    model = quantized(entry(), convert_with(pack))
    text = json.loads((model.folder / "config.json").read_text())
    own = text.pop("quantization_config")
    own.pop("quant_method")
    (model.folder / "config.json").write_text(json.dumps(text))
    (model.folder / "quantize_config.json").write_text(json.dumps(own))
    assert torch.equal(model.open().load(f"{Q}.weight"), model.values[f"{Q}.weight"])
    (model.folder / "quantize_config.json").write_text(json.dumps(own | {"bits": 3}))
    with pytest.raises(ModelError, match=r"quantize_config\.json: bits is 3; .*4 or 8"):
        model.open()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"bits": 3}, r"config\.json: quantization_config\.bits is 3; .* 4 or 8"),
        ({"group_size": 0}, r"group_size is 0; it must be a number of columns > 0"),
        ({"group_size": 24}, r"qweight' has 128 columns, which are not in groups of 24"),
        ({"group_size": 16}, r"scales' has shape \[4, 64\].* needs \[8, 64\]"),
        ({"checkpoint_format": "marlin"}, r"checkpoint_format is 'marlin'"),
        ({"is_marlin_format": True}, r"is_marlin_format is True"),
        ({"dynamic": {"+:.*down.*": {"bits": 8}}}, r"dynamic\.\+:\.\*down.*of their own"),
        ({"dynamic": [1]}, r"dynamic is \[1\]"),
        ({"rotation": "hadamard"}, r"rotation is 'hadamard'"),
        ({"sym": True}, r"qzeros' has the zero point \d+, .*around 8; set 'sym' to false"),
    ],
)
def test_what_is_refused(quantized, pack, entries, message):
    """Case 72: an option that can't be honoured stops the start and is named."""
    model = quantized(entry(**entries), convert_with(pack), num_hidden_layers=1)
    with pytest.raises(ModelError, match=message):
        model.open().load(f"{Q}.weight")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scales": None}, r"scales' is missing, which .*qweight' \[8, 64\] of 4 bits needs"),
        ({"qzeros": torch.zeros(2, 7, dtype=torch.int32)}, r"qzeros' has shape \[2, 7\].*\[2, 8\]"),
        (
            {"g_idx": torch.full((64,), 2, dtype=torch.int32)},
            r"g_idx' has groups 2 \.\. 2.*0 \.\. 1",
        ),
        ({"g_idx": torch.zeros(63, dtype=torch.int32)}, r"g_idx' has shape \[63\].*\[64\]"),
        ({"qweight": torch.zeros(8, 64)}, r"qweight' has shape \[8, 64\] and type F32"),
        ({"scales": torch.full((2, 64), torch.nan)}, r"scales' has a scale that is no number"),
        ({"weight": torch.zeros(64, 64)}, r"'model.*q_proj\.weight' is stored twice"),
    ],
)
def test_parts_that_do_not_fit(quantized, pack, rewrite, changes, message):
    """A part that is missing, misshapen or no number is named with what was expected."""
    model = quantized(entry(), convert_with(pack), num_hidden_layers=1)
    rewrite(model.folder, {f"{Q}.{end}": tensor for end, tensor in changes.items()})
    with pytest.raises(ModelError, match=message):
        model.open().load(f"{Q}.weight")
