"""Every op of the shipped CPU kernels against float64, over random shapes."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.conformance import attention_checks
from enginebay.conformance.closeness import check_row_invariance, close, same
from enginebay.conformance.kernel_offers import usable
from enginebay.conformance.linear_checks import hold_product, products
from enginebay.conformance.op_bounds import bound
from enginebay.conformance.product_extremes import check_exact
from enginebay.conformance.row_op_checks import EPS, gated, hold_quantized, normed
from enginebay.conformance.sample_layers import GROUPED, sample, sample_rows, with_codes
from enginebay.hookspecs.kernel import KernelContext, OpSignature
from enginebay.plugins.kernels import cpu, reference

PLUGINS = ("cpu", "reference")
MANY, FEW = settings(max_examples=30, deadline=None), settings(max_examples=4, deadline=None)
seeds = st.integers(0, 2**30)
rows = st.integers(0, 40)
widths = st.integers(1, 700)
scales = st.sampled_from([None, 0.02, 0.5, 1.0])
magnitudes = st.sampled_from([1e-3, 1.0, 30.0])
pytestmark = pytest.mark.parametrize("name", PLUGINS)


@cache
def kernels(name):
    """A plugin on one thread."""
    context = KernelContext(device="cpu", threads=1)
    if name == "cpu":
        return cpu.enginebay_kernel(options=cpu.Options(), context=context)
    return reference.enginebay_kernel(options=reference.Options(), context=context)


def calls(name, op, scheme=""):
    """Every callable for an op that works here."""
    return [offer.call for offer in usable(kernels(name), OpSignature(op=op, scheme=scheme))]


def drawn(seed, *shape, magnitude=1.0):
    return magnitude * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def static(scale):
    return None if scale is None else torch.tensor([scale])


@MANY
@given(seeds, rows, widths)
def test_embedding(name, seed, count, size):
    """Rows of the table."""
    weight = drawn(seed, 50, size)
    ids = torch.randint(0, 50, (count,), generator=torch.Generator().manual_seed(seed))
    for call in calls(name, "embedding"):
        same("kernel/embedding", "rows", call(ids, weight), weight[ids])


@MANY
@given(seeds, rows, widths, magnitudes)
def test_rms_norm(name, seed, count, size, magnitude):
    """Within float32."""
    x, weight = drawn(seed, count, size, magnitude=magnitude), drawn(seed + 1, size)
    for call in calls(name, "rms_norm"):
        right = normed(x, weight)
        close("kernel/rms_norm", call(x, weight, EPS), right, bound("elementwise"), "")


@MANY
@given(seeds, rows, widths, magnitudes)
def test_silu_and_mul(name, seed, count, size, magnitude):
    """Within float32."""
    x = drawn(seed, count, 2 * size, magnitude=magnitude)
    for call in calls(name, "silu_and_mul"):
        close("kernel/silu_and_mul", call(x), gated(x), bound("elementwise"), "")


@MANY
@given(seeds, rows, widths, magnitudes, scales)
def test_quantizing(name, seed, count, size, magnitude, scale):
    """The three ops that quantize, to the nearest step."""
    x, weight = drawn(seed, count, size, magnitude=magnitude), drawn(seed + 1, size)
    given_scale = static(scale)
    for call in calls(name, "quantize", "int8"):
        hold_quantized("kernel/quantize", call(x, given_scale, 0), x.double(), given_scale, "")
    for call in calls(name, "rms_norm_quantize", "int8"):
        found, right = call(x, weight, EPS, given_scale, 0), normed(x, weight)
        hold_quantized("kernel/rms_norm_quantize", found, right, given_scale, "", 1)
    wide = drawn(seed, count, 2 * size, magnitude=magnitude).clamp(min=-20)
    for call in calls(name, "silu_and_mul_quantize", "int8"):
        found, right = call(wide, given_scale, 0), gated(wide)
        hold_quantized("kernel/silu_and_mul_quantize", found, right, given_scale, "", 1)


@MANY
@given(
    seeds,
    rows,
    st.sampled_from(["float", "w8a8"]),
    widths,
    st.integers(1, 200),
    st.booleans(),
    st.sampled_from(["linear", "head"]),
)
def test_products_with_whole_rows(name, seed, count, scheme, columns, outputs, bias, role):
    """Plain and int8 weights, with and without a residual; the same bits for every row."""
    layer = sample(scheme, columns, outputs, bias=bias, seed=seed)
    x = sample_rows(layer.packed, count, seed)
    for product in products(kernels(name), layer, role):
        hold_product("kernel/linear", product, x)
        if role == "linear":
            hold_product("kernel/residual", product, x, drawn(seed, count, outputs))
        if product.offer.row_invariant and count > 1:
            check_row_invariance(product.of, x)


@MANY
@given(seeds, rows, st.sampled_from(GROUPED), st.data())
def test_products_with_groups(name, seed, count, scheme, data):
    """Codes in groups of any size, with offsets or without, under rows in float and int8."""
    group = data.draw(st.sampled_from([32, 64, 128]))
    columns = group * data.draw(st.integers(1, 6))
    group = data.draw(st.sampled_from([group, 0]))
    layer = sample(
        scheme,
        columns,
        data.draw(st.integers(1, 100)),
        group=group,
        offsets=data.draw(st.booleans()),
        bias=data.draw(st.booleans()),
        seed=seed,
    )
    x = sample_rows(layer.packed, count, seed)
    for product in products(kernels(name), layer, data.draw(st.sampled_from(["linear", "head"]))):
        hold_product(f"kernel/linear_{scheme}", product, x)
        if product.offer.row_invariant and count > 1:
            check_row_invariance(product.of, x)


@MANY
@given(seeds, st.integers(1, 40), st.integers(1, 3000), st.integers(1, 40))
def test_sums_of_int8_are_whole(name, seed, count, columns, outputs):
    """Operands of 127 and -127 alone: the largest sums there are."""
    chance = torch.Generator().manual_seed(seed)
    signs = [
        (torch.randint(0, 4, (n, columns), generator=chance) > 0).to(torch.int8)
        for n in (count, outputs)
    ]
    x, weight = (254 * each.short() - 127 for each in signs)
    layer = with_codes(sample("w8a8", columns, outputs), weight.to(torch.int8))
    for product in products(kernels(name), layer):
        check_exact(product, x.to(torch.int8), "random signs")


@FEW
@given(seeds)
def test_attention(name, seed):
    """Random head counts, sizes, windows, prompts, chunks and blocks."""
    for call in calls(name, "attention"):
        attention_checks.check_attention(call, seed=seed, num_cases=1)
