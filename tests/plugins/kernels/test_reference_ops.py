"""Reference ops: right against float64, and row-invariant where they say so."""

import pytest
import torch

from enginebay.dispatch import KernelTable
from enginebay.errors import PluginError
from enginebay.hookspecs.kernel import KernelContext, OpSignature
from enginebay.hookspecs.quant import PackedLinear
from enginebay.plugins.kernels import reference, row_ops, tiled_linear

NOISE = torch.Generator().manual_seed(11)


def randn(*shape):
    return torch.randn(shape, generator=NOISE)


def packed(inner, outer, bias=True):
    weight = randn(outer, inner) / inner**0.5
    extra = randn(outer) if bias else None
    return PackedLinear("layer", "float", inner, outer, {"weight": weight}, extra)


def plugin():
    return reference.enginebay_kernel(reference.Options(), KernelContext("cpu", 1))


def hold_rows(op, x, counts):
    """Rows have the bits that they have alone, at the start and in the middle."""
    alone = torch.cat([op(row[None]) for row in x])
    for count in counts:
        for start in (0, 3):
            rows = slice(start, start + count)
            assert torch.equal(op(x[rows]), alone[rows]), (count, start)


@pytest.mark.parametrize("size", [5, 24, 33, 64, 576, 1536])
def test_rms_norm_is_row_invariant(size):
    """Any number of rows, any place."""
    weight = randn(size)
    hold_rows(lambda x: row_ops.rms_norm(x, weight, 1e-5), 3 * randn(73, size), range(1, 71))


@pytest.mark.parametrize("size", [1, 7, 24, 33, 96, 1536])
def test_silu_and_mul_is_row_invariant(size):
    """Sizes that do not fill a vector included."""
    hold_rows(row_ops.silu_and_mul, 4 * randn(73, 2 * size), range(1, 71))


@pytest.mark.parametrize(
    ("inner", "outer"),
    [(64, 96), (24, 40), (7, 13), (5, 4), (577, 9), (1, 1), (33, 65), (64, 300), (576, 960)],
)
def test_tiles_are_row_invariant(inner, outer):
    """Rows alone, in full and filled-up tiles, and over several tiles."""
    layer = packed(inner, outer)
    hold_rows(lambda x: tiled_linear.tiles(x, layer), randn(70, inner), (1, 2, 5, 15, 16, 17, 40))


def test_tiles_are_row_invariant_for_a_vocabulary():
    """A head as wide as a real one."""
    layer = packed(576, 49152, bias=False)
    hold_rows(lambda x: tiled_linear.tiles_logits(x, layer), randn(8, 576), (2, 5))


def test_tiles_do_not_look_at_neighbours():
    """NaN and infinity in other rows of a tile leave a row as it is."""
    layer, x = packed(64, 96), randn(20, 64)
    expected = tiled_linear.tiles(x, layer)[7]
    x[6], x[8], x[17] = float("nan"), float("inf"), float("nan")
    assert torch.equal(tiled_linear.tiles(x, layer)[7], expected)


def test_tiles_take_a_view_at_any_address():
    """Rows that start at an odd address have the same bits as aligned ones."""
    layer, x = packed(33, 65), randn(10, 33)
    flat = torch.empty(331)
    for offset in (0, 1):
        view = flat[offset : offset + 330].view(10, 33)
        view.copy_(x)
        assert torch.equal(tiled_linear.tiles(view, layer), tiled_linear.tiles(x, layer))


@pytest.mark.parametrize("call", [tiled_linear.mm, tiled_linear.tiles])
@pytest.mark.parametrize("rows", [0, 1, 16, 21])
def test_products_are_right(call, rows):
    """Both forms give x W^T + b, an empty batch included."""
    layer, x = packed(48, 80), randn(rows, 48)
    exact = x.double() @ layer.tensors["weight"].double().T + layer.bias.double()
    result = call(x, layer)
    assert result.shape == (rows, 80)
    assert torch.allclose(result.double(), exact, atol=1e-5)


def test_row_ops_are_right():
    """Norm and activation against float64."""
    x, weight = 3 * randn(9, 33), randn(33)
    wide = x.double()
    exact = wide / (wide.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert torch.allclose(row_ops.rms_norm(x, weight, 1e-5).double(), exact, atol=1e-5)
    gate, up = 5 * randn(9, 33), randn(9, 33)
    exact = torch.nn.functional.silu(gate.double()) * up.double()
    result = row_ops.silu_and_mul(torch.cat((gate, up), dim=1))
    assert torch.allclose(result.double(), exact, atol=1e-5)
    table = randn(11, 4)
    assert torch.equal(row_ops.embedding(torch.tensor([3, 0, 3]), table), table[[3, 0, 3]])


def test_exp_is_the_same_in_bodies_and_tails_of_vectors():
    """What the activation and the softmax rest on; torch's sigmoid fails it."""
    x = 8 * randn(400)
    expected = torch.exp(x)
    for start in range(33):
        for count in (1, 3, 8, 15, 16, 31, 64, 65, 300):
            part = slice(start, start + count)
            assert torch.equal(torch.exp(x[part]), expected[part])


def test_silu_of_extreme_values_is_finite():
    """exp(-x) overflows for very negative x; its silu is 0 all the same."""
    x = torch.tensor([[-1e4, -100.0, 0.0, 1e4, 1.0, 1.0, 1.0, 1.0]])
    assert row_ops.silu_and_mul(x).tolist() == [[0.0, 0.0, 0.0, 1e4]]


@pytest.mark.parametrize("size", [1, 2, 3, 24, 64, 100])
def test_sum_last_sums(size):
    """Additions of halves cover every element, also of odd sizes."""
    x = randn(4, size)
    assert torch.allclose(row_ops.sum_last(x), x.sum(-1, keepdim=True), atol=1e-5)


def test_the_table_takes_tiles_when_rows_must_not_matter():
    """``mm`` comes first; a stack that requires row invariance gets ``tiles``."""
    signature = OpSignature(op="linear", scheme="float", sizes=(("in", 64), ("out", 96)))
    fast = KernelTable([("reference", plugin())])
    assert fast.resolve(signature) is tiled_linear.mm
    assert not fast.row_invariant
    strict = KernelTable([("reference", plugin())], require_row_invariant=True)
    assert strict.resolve(signature) is tiled_linear.tiles
    assert strict.row_invariant
    assert strict.choices[signature].declined[0][0] == "reference/mm"


@pytest.mark.parametrize("op", ["linear", "rms_norm", "attention"])
def test_other_dtypes_are_declined_with_a_reason(op):
    """bfloat16 is other kernels' work."""
    table = KernelTable([("reference", plugin())])
    with pytest.raises(PluginError, match="float32 or float64, not in bfloat16"):
        table.resolve(OpSignature(op=op, dtype="bfloat16"))


def test_packed_schemes_are_declined_with_a_reason():
    """Unknown schemes are not guessed."""
    table = KernelTable([("reference", plugin())])
    with pytest.raises(PluginError, match="not 'w2a2'"):
        table.resolve(OpSignature(op="linear", scheme="w2a2"))


def test_every_op_is_offered():
    """The reference is complete: it is what others are compared with."""
    assert {offer.op for offer in plugin().offers()} == {
        "embedding", "rms_norm", "linear", "logits", "silu_and_mul", "attention",
        "quantize", "rms_norm_quantize", "silu_and_mul_quantize",
    }  # fmt: skip
