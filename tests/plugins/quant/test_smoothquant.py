"""The scheme w8a8: what is packed, what is kept, what stays in float, what is refused."""

import copy

import pytest
import torch

from enginebay.errors import StackError
from enginebay.hookspecs.format import StoredForm, StoredWeight
from enginebay.hookspecs.quant import KeepsStored, Preparing, QuantContext, Writing
from enginebay.plugins.kernels.quantized_linear import dequantized
from enginebay.plugins.quant import smoothquant
from enginebay.plugins.quant.smoothquant import Options, SmoothQuant

from .conftest import cosine


def plain(**options):
    return SmoothQuant(Options(smoothing=False, **options))


def stored(bits=8, group_size=16, inputs="int8", codes=None, **more):
    codes = torch.randint(-127, 128, (6, 16), dtype=torch.int8) if codes is None else codes
    form = StoredForm(bits=bits, group_size=group_size, inputs=inputs, **more)
    scales = torch.rand(6, 16 // group_size) + 0.1
    offsets = torch.zeros_like(scales) if form.offsets else None
    scale = torch.tensor([0.5]) if form.static else None
    return StoredWeight(form, codes, scales, offsets, scale)


def test_it_is_built_by_its_hook():
    """And offers all that the contract makes optional."""
    built = smoothquant.enginebay_quant(Options(), QuantContext("float32", "cpu"))
    assert isinstance(built, KeepsStored)
    assert isinstance(built, Preparing)
    assert isinstance(built, Writing)


def test_a_weight_is_within_half_a_code():
    """int8 in -127 .. 127, one scale a row, whatever the rows' sizes; zeros stay zeros."""
    weight = torch.randn(2000, 600) * torch.logspace(-3, 3, 2000).unsqueeze(1)
    weight[7] = 0
    packed = plain().pack("layer", "linear", weight, None)
    codes, scales = packed.tensors["weight"], packed.tensors["scales"]
    assert (packed.scheme, packed.inputs, packed.group_size) == ("w8a8", "int8", 0)
    assert codes.dtype == torch.int8
    assert codes.min() >= -127
    assert codes.abs().amax(dim=1).tolist() == [127 if row != 7 else 0 for row in range(2000)]
    assert scales.shape == (2000,)
    error = (dequantized(packed) - weight).abs() / scales.unsqueeze(1)
    assert error.max() <= 0.5001
    assert scales[7] == 1


def test_shapes_alone_are_packed_without_bytes():
    """A rehearsal on the device meta gives the shapes and types that the load will."""
    weight, bias = torch.randn(300, 64), torch.randn(300)
    real = plain().pack("layer", "linear", weight, bias)
    told = plain().pack("layer", "linear", weight.to("meta"), bias.to("meta"))
    for name, tensor in real.tensors.items():
        assert told.tensors[name].shape == tensor.shape
        assert told.tensors[name].dtype == tensor.dtype
        assert told.tensors[name].device.type == "meta"


def test_what_stays_in_float_is_told_with_the_reason():
    """By pattern, or the head by its option: the caller's own tensor, counted once."""
    quantizer = plain(head="float", ignore=("*.mlp.down",))
    weight = torch.randn(8, 4)
    for name, role in (("model.layers.1.mlp.down", "linear"), ("lm_head", "head")):
        packed = quantizer.pack(name, role, weight, None)
        assert packed.scheme == "float"
        assert packed.tensors["weight"] is weight
    quantizer.pack("model.layers.1.mlp.gate_up", "linear", weight, None)
    report = quantizer.report()
    assert report.float_layers == {
        "model.layers.1.mlp.down": "matches ignore = '*.mlp.down'",
        "lm_head": "head = 'float'",
    }
    assert report.weight_bytes == 8 * 4 * 4 + 8 * 4
    assert report.metadata_bytes == 8 * 4
    assert (report.scheme, report.activations, report.scales) == ("w8a8", "int8 dynamic", "channel")


@pytest.mark.parametrize("static", [False, True])
def test_case_72_codes_of_its_form_are_kept(static):
    """Bit for bit, with the scale of static activations."""
    quantizer, weight = SmoothQuant(Options()), stored(static=static)
    packed = quantizer.pack_stored("layer", "linear", weight, None)
    assert torch.equal(packed.tensors["weight"], weight.codes)
    assert torch.equal(packed.tensors["scales"], weight.scales.flatten())
    assert packed.input_scale is weight.input_scale
    assert quantizer.report().activations == f"int8 {'static' if static else 'dynamic'}"


def test_the_lowest_code_is_kept():
    """Other quantizers use -128 too."""
    codes = torch.full((6, 16), -128, dtype=torch.int8)
    packed = SmoothQuant(Options()).pack_stored("layer", "linear", stored(codes=codes), None)
    assert packed.tensors["weight"].unique().tolist() == [-128]


@pytest.mark.parametrize(
    "form", [{"inputs": "float"}, {"bits": 4}, {"group_size": 8}, {"offsets": True}]
)
def test_case_72_codes_of_another_form_are_not_taken_for_its_own(form):
    """They are packed anew from their values, even in a checkpoint that has its form too."""
    quantizer = SmoothQuant(Options())
    assert quantizer.pack_stored("layer", "linear", stored(**form), None) is None
    assert quantizer.pack("layer", "linear", torch.randn(6, 16), None).scheme == "w8a8"


def test_the_head_stays_float_when_asked_though_codes_exist():
    """Its weight then comes dequantized."""
    quantizer = SmoothQuant(Options(head="float"))
    assert quantizer.pack_stored("lm_head", "head", stored(), None) is None
    assert quantizer.pack("lm_head", "head", torch.randn(6, 16), None).scheme == "float"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"alpha": 1.5}, "alpha = 1.5: must be from 0 to 1"),
        ({"alpha": float("nan")}, "alpha = nan: must be from 0 to 1"),
        ({"alpha": 0.5, "smoothing": False}, "does nothing with smoothing = false"),
        ({"calibration": "a.txt", "smoothing": False}, "does nothing with smoothing = false"),
        ({"calibration_tokens": 1}, "calibration_tokens = 1: must be 2 or more"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, told):
    """With name, value and what would be right."""
    with pytest.raises(StackError, match=told):
        SmoothQuant(Options(**options))


def test_a_pattern_that_no_layer_has_is_refused(tiny, smooth):
    """With a name that exists."""
    model = tiny()
    with pytest.raises(StackError, match=r"ignore has 'model.layers.0.mlp.dwn', .*mlp.down"):
        smooth(ignore=("model.layers.0.mlp.dwn",)).prepare(
            model.spec, model.family, model.checkpoint
        )


def test_case_72_logits_are_near_those_in_float(tiny, smooth):
    """Smoothed or not: cosine above 0.99, with static scales 0.98; layers in float: nearer."""
    model = tiny()
    right = model.logits()
    for options, least in (
        ({"smoothing": False}, 0.99),
        ({}, 0.99),
        ({"activations": "static"}, 0.98),
    ):
        assert cosine(model.logits(smooth(**options)), right) > least
    ignoring = smooth(ignore=("*.mlp.*", "*.q_proj"), head="float")
    assert cosine(model.logits(ignoring), right) > cosine(model.logits(smooth()), right)
    assert ignoring.report().float_layers == {
        **{f"model.layers.{n}.self_attn.qkv": "matches ignore = '*.q_proj'" for n in (0, 1)},
        **{
            f"model.layers.{n}.mlp.{part}": "matches ignore = '*.mlp.*'"
            for n in (0, 1)
            for part in ("gate_up", "down")
        },
        "lm_head": "head = 'float'",
    }


def test_layers_that_a_quantized_checkpoint_left_in_float_stay_so(tiny, smooth, tmp_path):
    """Its ignore list is somebody's decision; the codes of the others are kept."""
    model = tiny()
    folder = tmp_path / "written"
    folder.mkdir()
    smooth(head="float", ignore=("*.1.mlp.down",)).write(
        model.spec, model.family, model.checkpoint, folder
    )
    written = type(model)(folder)
    quantizer = SmoothQuant(Options())
    logits = written.logits(quantizer)
    assert quantizer.report().float_layers == {
        "model.layers.1.mlp.down": "the checkpoint has it in float",
        "lm_head": "the checkpoint has it in float",
    }
    assert cosine(logits, model.logits()) > 0.99


def test_a_copy_packs_for_itself():
    """The rehearsal's copy counts nothing in the original."""
    quantizer = plain()
    copy.deepcopy(quantizer).pack("layer", "linear", torch.randn(4, 4), None)
    assert quantizer.report().weight_bytes == 0
