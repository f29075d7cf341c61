"""Products with codes on the CPU: against float64, and the same bits for a row everywhere."""

import pytest
import torch

from enginebay.conformance.closeness import check_row_invariance
from enginebay.conformance.sample_layers import sample
from enginebay.hookspecs.kernel import OpSignature
from enginebay.hookspecs.quant import PackedLinear
from enginebay.plugins.kernels import cpu_codes, cpu_pool, quantized_linear
from enginebay.plugins.kernels.cpu_codes_panels import pack_bytes, pack_nibbles
from enginebay.plugins.kernels.tiled_linear import mm

PACKS = {"int8": pack_bytes, "int4": pack_nibbles}
SHAPES = [(7, 5, 0), (96, 70, 32), (128, 64, 128), (15, 33, 5), (1, 1, 0), (577, 65, 0)]
"""Columns, outputs, columns of a group."""


def product(threads=1):
    """Both products, as one callable."""
    codes = cpu_codes.Codes(cpu_pool.Pool(threads))
    return lambda x, packed, *residual: (codes.bytes if packed.scheme == "int8" else codes.nibbles)(
        x, packed, *residual
    )


@pytest.fixture(scope="module")
def multiply():
    """On one thread."""
    return product()


@pytest.mark.parametrize("scheme", PACKS)
@pytest.mark.parametrize(("columns", "outputs", "group"), SHAPES)
def test_products_are_right(multiply, scheme, columns, outputs, group):
    """Odd columns, odd groups, few outputs: float64 says the same, and so does the oracle."""
    given = sample(scheme, columns, outputs, group=group)
    oracle = quantized_linear.weight_only(mm)
    ready = PACKS[scheme](given.packed)
    for rows in (1, 2, 3, 4, 5, 6, 50):
        x = torch.randn(rows, columns)
        right = x.double() @ given.weight.T + given.packed.bias.double()
        found = multiply(x, ready)
        terms = x.double().abs() @ given.weight.abs().T + given.packed.bias.abs()
        bound = (3 + columns**0.5) * 2**-24 * terms  # what rounding adds to a sum, and more
        assert ((found.double() - right).abs() <= bound).all()
        assert ((oracle(x, given.packed).double() - right).abs() <= bound).all()


@pytest.mark.parametrize("scheme", PACKS)
def test_a_row_has_the_same_bits_everywhere(multiply, scheme):
    """Alone, in any order, in parts: tiles of 1 to 6 rows and blocks of 48 show nowhere."""
    ready = PACKS[scheme](sample(scheme, 192, 100, group=64).packed)
    check_row_invariance(lambda x: multiply(x, ready), torch.randn(101, 192))


@pytest.mark.parametrize("scheme", PACKS)
def test_threads_change_no_bit(monkeypatch, multiply, scheme):
    """Two threads, an item a panel."""
    ready = PACKS[scheme](sample(scheme, 64, 1000, group=32).packed)
    x = torch.randn(11, 64)
    alone = multiply(x, ready)
    monkeypatch.setattr(cpu_pool, "TINY", 0)
    assert torch.equal(product(2)(x, ready), alone)


@pytest.mark.parametrize("scheme", PACKS)
def test_a_residual_is_added_to_in_place(multiply, scheme):
    """The same tensor comes back, with the product added to what it held."""
    ready = PACKS[scheme](sample(scheme, 32, 70).packed)
    x, residual = torch.randn(9, 32), torch.randn(9, 70)
    before = residual.clone()
    assert multiply(x, ready, residual) is residual
    assert torch.equal(residual, before + multiply(x, ready))


@pytest.mark.parametrize("scheme", PACKS)
def test_rows_may_lie_apart_and_may_be_none(multiply, scheme):
    """Views of a wider tensor are read where they lie; a step without rows gives none."""
    ready = PACKS[scheme](sample(scheme, 32, 70, bias=False).packed)
    wide = torch.randn(5, 100)
    assert torch.equal(multiply(wide[:, 10:42], ready), multiply(wide[:, 10:42].clone(), ready))
    assert multiply(torch.empty(0, 32), ready).shape == (0, 70)


@pytest.mark.parametrize("scheme", PACKS)
def test_a_row_that_is_not_a_number_stays_alone(multiply, scheme):
    """Infinities and NaN come out in their row and in no other."""
    ready = PACKS[scheme](sample(scheme, 64, 64, group=32).packed)
    x = torch.randn(8, 64)
    clean = multiply(x, ready)
    x[2, 3], x[5, 0] = float("nan"), float("inf")
    dirty = multiply(x, ready)
    rest = [0, 1, 3, 4, 6, 7]
    assert torch.equal(dirty[rest], clean[rest])
    assert dirty[2].isnan().all()
    assert not dirty[5].isfinite().any()


@pytest.mark.parametrize("scheme", PACKS)
def test_the_rehearsal_has_the_shapes_of_the_load(scheme):
    """On the device meta: the same tensors, types and shapes, and half a byte a 4-bit code."""
    packed = sample(scheme, 96, 70, group=32).packed
    tensors = {key: each.to("meta") for key, each in packed.tensors.items()}
    planned = PACKS[scheme](
        PackedLinear("sample", scheme, 96, 70, tensors, packed.bias.to("meta"), group_size=32)
    )
    real = PACKS[scheme](packed)
    for key, each in real.tensors.items():
        assert (planned.tensors[key].shape, planned.tensors[key].dtype) == (each.shape, each.dtype)
    assert real.tensors["weight"].nbytes == 128 * 96 // (2 if scheme == "int4" else 1)


@pytest.mark.parametrize("scheme", PACKS)
def test_what_compiled_code_can_not_read_is_refused(multiply, scheme):
    """Another dtype, another width, or a layer that this kernel did not lay out."""
    packed = sample(scheme, 32, 8).packed
    ready = PACKS[scheme](packed)
    for x in (torch.ones(2, 32, dtype=torch.float64), torch.ones(2, 31)):
        with pytest.raises(ValueError, match=r"needs torch.float32 \[2, 32\]"):
            multiply(x, ready)
    with pytest.raises(ValueError, match="residual is"):
        multiply(torch.ones(2, 32), ready, torch.ones(2, 9))
    with pytest.raises(TypeError, match="'sample' was not laid out"):
        multiply(torch.ones(2, 32), packed)


@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        (OpSignature(op="linear", scheme="int8", dtype="bfloat16"), "float32, not bfloat16"),
        (OpSignature(op="linear", scheme="int8", features=("offsets",)), "without offsets"),
        (OpSignature(op="linear", scheme="w8a8"), "not 'w8a8'"),
    ],
)
def test_what_it_does_not_run_it_declines(signature, reason):
    """By dtype, by scheme, and int8 codes with offsets."""
    offers = cpu_codes.Codes(cpu_pool.Pool(1)).offers()
    assert any(reason in (offer.supports(signature) or "") for offer in offers)
    assert all(offer.supports(signature) for offer in offers)
