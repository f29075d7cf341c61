"""The schemes int8-weight and int4-weight: errors, kept codes, what stays float, reports."""

import pytest
import torch

from enginebay.errors import StackError
from enginebay.hookspecs.format import StoredForm, StoredWeight
from enginebay.hookspecs.quant import KeepsStored, QuantContext
from enginebay.plugins.kernels.quantized_linear import dequantized
from enginebay.plugins.quant import int4_weight, int8_weight
from enginebay.plugins.quant.int4_groups import quantized

MODULES = {"int8": int8_weight, "int4": int4_weight}
CONTEXT = QuantContext("float32", "cpu")


def scheme(name, **options):
    """A quantizer, as its hook builds it."""
    module = MODULES[name]
    return module.enginebay_quant(module.Options(**options), CONTEXT)


def weights(rows=10, columns=192):
    """Rows of different magnitudes, one of them all zeros."""
    noise = torch.Generator().manual_seed(rows)
    values = torch.randn(rows, columns, generator=noise)
    return values * torch.logspace(-3, 1, rows).unsqueeze(1).index_fill(0, torch.tensor(0), 0.0)


@pytest.mark.parametrize("group", [0, 32, 64])
def test_int8_weights_are_off_by_half_a_step_at_most(group):
    """Each group's greatest magnitude is 127 steps; zeros are zeros."""
    weight = weights()
    packed = scheme("int8", group_size=group).pack("layer", "linear", weight, None)
    assert (packed.scheme, packed.group_size, packed.inputs) == ("int8", group, "float")
    steps = packed.tensors["scales"].repeat_interleave(group or 192, dim=1)
    assert ((dequantized(packed) - weight).abs() <= 0.5001 * steps).all()
    assert packed.tensors["weight"].abs().amax(dim=1)[1:].eq(127).all()
    assert not dequantized(packed)[0].any()


def test_int4_weights_are_off_by_half_a_step_at_most():
    """Without a search sixteen codes reach from the least weight of a group to the greatest."""
    weight = weights()
    packed = scheme("int4", rounds=0).pack("layer", "linear", weight, None)
    assert (packed.scheme, packed.group_size) == ("int4", 32)
    steps = packed.tensors["scales"].repeat_interleave(32, dim=1)
    assert ((dequantized(packed) - weight).abs() <= 0.5001 * steps).all()
    codes = packed.tensors["weight"][1:].view(-1, 32)
    assert codes.amin(dim=1).eq(0).all()
    assert codes.amax(dim=1).eq(15).all()


def test_each_round_of_the_search_lessens_the_error():
    """The mean square falls by a tenth and more in three rounds; equal weights stay exact."""
    weight = weights(50)
    weight[1] = 2.5
    errors = []
    for rounds in range(4):
        codes, scales, offsets = quantized(weight, 32, rounds)
        values = codes.view(50, -1, 32) * scales.unsqueeze(2) + offsets.unsqueeze(2)
        assert torch.equal(values.view(50, -1)[1], weight[1])
        errors.append(float((values.view(50, -1) - weight).square().sum()))
    assert errors == sorted(errors, reverse=True)
    assert errors[3] < 0.9 * errors[0]


@pytest.mark.parametrize("name", MODULES)
def test_a_smaller_group_serves_columns_that_do_not_divide(name):
    """96 columns have no groups of 128 or 64; 40 have none at all."""
    quantizer = scheme(name, group_size=128)
    assert quantizer.pack("some", "linear", weights(4, 96), None).group_size == 32
    left = quantizer.pack("few", "linear", weights(4, 40), None)
    if name == "int8":
        assert (left.scheme, left.group_size) == ("int8", 0)
    else:
        assert left.scheme == "float"
        assert "40 columns" in quantizer.report().float_layers["few"]


@pytest.mark.parametrize("name", MODULES)
def test_what_is_left_in_float_is_told(name):
    """By pattern and for the head; the caller's own tensor, so that tied ones stay shared."""
    quantizer = scheme(name, head="float", ignore=("*.down",))
    weight = weights()
    for layer, role in (("a.down", "linear"), ("lm_head", "head")):
        packed = quantizer.pack(layer, role, weight, None)
        assert (packed.scheme, packed.tensors["weight"] is weight) == ("float", True)
        stored = stored_weight(8, 32)
        assert quantizer.pack_stored(layer, role, stored, None) is None
    assert quantizer.pack("a.up", "linear", weight, None).scheme == name
    assert quantizer.report().float_layers == {
        "a.down": "matches ignore = '*.down'",
        "lm_head": "head = 'float'",
    }


@pytest.mark.parametrize(("head", "expected"), [("int8", "int8"), ("int4", "int4")])
def test_the_head_of_int4_may_have_eight_bits(head, expected):
    """Its default; in groups as the others."""
    packed = scheme("int4", head=head).pack("lm_head", "head", weights(), torch.ones(10))
    assert (packed.scheme, packed.group_size, packed.bias.shape) == (expected, 32, (10,))


@pytest.mark.parametrize("group", [0, 32])
def test_activations_of_int8_may_have_eight_bits(group):
    """Rows have one scale or one a group, as the weight."""
    quantizer = scheme("int8", activations="int8", group_size=group)
    packed = quantizer.pack("a", "linear", weights(), None)
    assert (packed.scheme, packed.inputs) == ("w8a8-groups", "int8")
    assert packed.group_size == packed.input_group == group
    assert packed.tensors["scales"].shape == (10, 192 // (group or 192))
    told = "int8 dynamic, by group" if group else "int8 dynamic"
    assert quantizer.report().activations == quantizer.activations == told


def test_activations_of_int4_may_have_eight_bits():
    """Rows in the groups of the weight, for the head of 8 bits as well."""
    quantizer = scheme("int4", activations="int8", group_size=64)
    packed = quantizer.pack("a", "linear", weights(), None)
    assert (packed.scheme, packed.inputs) == ("w4a8", "int8")
    assert packed.group_size == packed.input_group == 64
    plain = scheme("int4", group_size=64).pack("a", "linear", weights(), None)
    assert all(torch.equal(each, plain.tensors[key]) for key, each in packed.tensors.items())
    assert quantizer.pack_stored("b", "linear", stored_weight(4, 32), None).input_group == 32
    for head in (
        quantizer.pack_stored("lm_head", "head", stored_weight(8, 32), None),
        quantizer.pack("lm_head", "head", weights(), None),
    ):
        assert (head.scheme, head.inputs) == ("w8a8-groups", "int8")
        assert head.input_group == head.group_size > 0
    report = quantizer.report()
    assert (report.scheme, report.activations) == ("w4a8", "int8 dynamic, by group")


def stored_weight(bits, group, *, offsets=False, signed=True, rows=6, columns=64):
    """A weight as a checkpoint stores it."""
    noise = torch.Generator().manual_seed(bits)
    low = -(2 ** (bits - 1)) if signed else 0
    codes = torch.randint(low, low + 2**bits, (rows, columns), generator=noise)
    scales = 0.5 + torch.rand(rows, columns // group, generator=noise)
    form = StoredForm(bits=bits, group_size=group, offsets=offsets)
    starts = -scales if offsets else None
    return StoredWeight(form=form, codes=codes.to(torch.int8), scales=scales, offsets=starts)


@pytest.mark.parametrize(
    ("name", "stored", "role"),
    [
        ("int8", stored_weight(8, 32), "linear"),
        ("int8", stored_weight(8, 64), "linear"),
        ("int8", stored_weight(4, 32), "linear"),
        ("int4", stored_weight(4, 32), "linear"),
        ("int4", stored_weight(4, 64, offsets=True), "linear"),
        ("int4", stored_weight(4, 16, offsets=True, signed=False), "head"),
        ("int4", stored_weight(8, 32), "head"),
    ],
)
def test_codes_of_a_checkpoint_are_kept(name, stored, role):
    """The weights are the checkpoint's, and so are codes and groups (4-bit ones from 0)."""
    bias = torch.ones(6)
    packed = scheme(name).pack_stored("layer", role, stored, bias)
    torch.testing.assert_close(dequantized(packed), stored.dequantized(), rtol=0, atol=4e-6)
    shift = 8 if packed.scheme == "int4" and int(stored.codes.min()) < 0 else 0
    assert torch.equal(packed.tensors["weight"].int(), stored.codes.int() + shift)
    assert torch.equal(packed.tensors["scales"], stored.scales)
    assert packed.bias is bias
    assert packed.group_size == (stored.form.group_size if stored.scales.shape[1] > 1 else 0)


@pytest.mark.parametrize(
    ("name", "stored", "role"),
    [
        ("int8", stored_weight(8, 32, offsets=True), "linear"),
        ("int4", stored_weight(8, 32), "linear"),
        ("int4", stored_weight(8, 32, offsets=True), "head"),
    ],
)
def test_codes_that_do_not_fit_are_declined(name, stored, role):
    """They are dequantized and packed anew."""
    quantizer = scheme(name)
    assert isinstance(quantizer, KeepsStored)
    assert quantizer.pack_stored("layer", role, stored, None) is None


@pytest.mark.parametrize("name", MODULES)
def test_the_rehearsal_has_the_shapes_of_the_load(name):
    """On the device meta, for weights and for stored codes: same types, shapes, report."""
    here, planned = scheme(name), scheme(name)
    stored = stored_weight(4, 32)
    ghost = StoredWeight(stored.form, stored.codes.to("meta"), stored.scales.to("meta"))
    for real, plan in (
        (
            here.pack("a", "linear", weights(), None),
            planned.pack("a", "linear", weights().to("meta"), None),
        ),
        (
            here.pack_stored("b", "linear", stored, None),
            planned.pack_stored("b", "linear", ghost, None),
        ),
    ):
        for key, each in real.tensors.items():
            assert plan.tensors[key].device.type == "meta"
            assert (plan.tensors[key].shape, plan.tensors[key].dtype) == (each.shape, each.dtype)
    assert here.report() == planned.report()


def test_reports_count_codes_and_scales():
    """Bytes of codes at their bits, four for each scale and offset."""
    for name, codes, metadata in (("int8", 1920, 40), ("int4", 960, 480)):
        quantizer = scheme(name)
        quantizer.pack("layer", "linear", weights(), None)
        report = quantizer.report()
        assert (report.scheme, report.activations) == (name, "float")
        assert (report.weight_bytes, report.metadata_bytes) == (codes, metadata)
        assert (report.group_size, report.scales) in ((None, "channel"), (32, "group"))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("int8", {"group_size": 48}, "int8-weight: group_size is 48; it must be one of 0, 32"),
        ("int4", {"group_size": 0}, "int4-weight: group_size is 0; it must be one of 32, 64"),
        ("int4", {"rounds": -1}, "rounds is -1; it must be 0 or more"),
    ],
)
def test_options_that_mean_nothing_stop_the_start(name, options, message):
    """The message names the option, its value and what it may be."""
    with pytest.raises(StackError, match=message):
        scheme(name, **options)
