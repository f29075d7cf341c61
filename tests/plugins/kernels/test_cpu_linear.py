"""Products over panels: right, exact, the same bits for a row wherever it stands."""

import subprocess
import sys
import textwrap

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.hookspecs.kernel import OpSignature, QuantizedRows
from enginebay.hookspecs.quant import PackedLinear
from enginebay.plugins.kernels import quantized_linear
from enginebay.plugins.kernels.cpu import int_mm
from enginebay.plugins.kernels.cpu_linear import Products
from enginebay.plugins.kernels.cpu_logits import Logits
from enginebay.plugins.kernels.cpu_panels import pack_float, pack_int
from enginebay.plugins.kernels.cpu_pool import Pool
from enginebay.plugins.kernels.int8_proof import prove_int8

SIZES = st.tuples(st.integers(0, 40), st.integers(1, 200), st.integers(1, 150))


@pytest.fixture(scope="module", params=[1, 2], ids=["one thread", "two threads"])
def pool(request):
    made = Pool(request.param)
    made.warm_up()
    return made


def int_layer(inner, outer, bias=True, seed=0):
    random = torch.Generator().manual_seed(seed)
    tensors = {
        "weight": torch.randint(-127, 128, (outer, inner), dtype=torch.int8, generator=random),
        "scales": torch.rand(outer, generator=random) / 100,
    }
    given_bias = torch.randn(outer, generator=random) if bias else None
    return PackedLinear("w", "w8a8", inner, outer, tensors, given_bias, inputs="int8")


def int_rows(rows, inner, seed=1):
    random = torch.Generator().manual_seed(seed)
    values = torch.randint(-127, 128, (rows, inner), dtype=torch.int8, generator=random)
    return QuantizedRows(values, torch.rand(rows, 1, generator=random))


def float_layer(inner, outer, bias=True, seed=0):
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(outer, inner, generator=random)
    given_bias = torch.randn(outer, generator=random) if bias else None
    return PackedLinear("w", "float", inner, outer, {"weight": weight}, given_bias)


@settings(max_examples=25, deadline=None)
@given(sizes=SIZES, bias=st.booleans(), seed=st.integers(0, 2**20))
def test_int8_products_are_the_oracles(pool, sizes, bias, seed):
    """Any shape, with and without bias and residual; the sums in int32 are exact."""
    rows, inner, outer = sizes
    layer, x = int_layer(inner, outer, bias, seed), int_rows(rows, inner, seed)
    packed, products = pack_int(layer), Products(pool)
    right = quantized_linear.w8a8(x, layer)
    torch.testing.assert_close(products.ints(x, packed), right, rtol=1e-6, atol=1e-6)
    residual = torch.ones(rows, outer)
    assert products.ints(x, packed, residual) is residual
    torch.testing.assert_close(residual, right + 1, rtol=1e-6, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(sizes=SIZES, bias=st.booleans(), seed=st.integers(0, 2**20))
def test_float_products_are_float64s(pool, sizes, bias, seed):
    """Any shape; ``linear`` over panels and ``logits`` over weights as they lie."""
    rows, inner, outer = sizes
    layer = float_layer(inner, outer, bias, seed)
    x = torch.randn(rows, inner, generator=torch.Generator().manual_seed(seed))
    right = x.double() @ layer.tensors["weight"].double().T
    right = right if layer.bias is None else right + layer.bias.double()
    tolerance = {"rtol": 0.0, "atol": 4e-6 * inner**0.5 * 4}
    products = Products(pool)
    torch.testing.assert_close(products.floats(x, pack_float(layer)).double(), right, **tolerance)
    torch.testing.assert_close(Logits(pool).floats(x, layer).double(), right, **tolerance)
    residual = torch.ones(rows, outer)
    products.floats(x, pack_float(layer), residual)
    torch.testing.assert_close(residual.double(), right + 1, **tolerance)


def test_a_row_has_the_same_bits_among_any_others(pool):
    """All three products, for every number of rows up to two tiles and in a block of 100."""
    products, heads = Products(pool), Logits(pool)
    floats, ints = float_layer(75, 50), int_layer(75, 50)
    x, q = torch.randn(100, 75, generator=torch.Generator().manual_seed(2)), int_rows(100, 75)
    whole = (
        products.floats(x, pack_float(floats)),
        heads.floats(x, floats),
        products.ints(q, pack_int(ints)),
    )
    for first, count in [(0, n) for n in range(1, 14)] + [(99, 1), (50, 7), (3, 97)]:
        part = slice(first, first + count)
        some = QuantizedRows(q.values[part].contiguous(), q.scales[part].contiguous())
        found = (
            products.floats(x[part], pack_float(floats)),
            heads.floats(x[part], floats),
            products.ints(some, pack_int(ints)),
        )
        for one, other in zip(found, whole, strict=True):
            assert torch.equal(one.view(torch.int32), other[part].view(torch.int32))


def test_rows_that_are_not_numbers_disturb_no_other(pool):
    """A scale that is not a number stays in its row."""
    layer, x = int_layer(64, 48), int_rows(8, 64)
    clean = Products(pool).ints(x, pack_int(layer))
    x.scales[3] = float("nan")
    found = Products(pool).ints(x, pack_int(layer))
    assert found[3].isnan().all()
    others = [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(found[others], clean[others])


def test_rows_of_another_shape_are_refused(pool):
    """Compiled code reads by address: what it would read past is told before."""
    products = Products(pool)
    floats, ints = pack_float(float_layer(64, 48)), pack_int(int_layer(64, 48))
    for x in (torch.ones(2, 63), torch.ones(64, 2).T, torch.ones(2, 64).double()):
        with pytest.raises(ValueError, match="x is"):
            products.floats(x, floats)
    with pytest.raises(ValueError, match="rows is"):
        products.ints(int_rows(2, 63), ints)
    with pytest.raises(ValueError, match="residual is"):
        products.ints(int_rows(2, 64), ints, torch.ones(2, 47))


def test_the_greatest_operands_do_not_saturate(pool):
    """127 * 127 * 1536 times over: above what 24 or 16 bits hold."""
    layer = PackedLinear(
        "w", "w8a8", 1536, 20,
        {"weight": torch.full((20, 1536), 127, dtype=torch.int8), "scales": torch.ones(20)},
        inputs="int8",
    )  # fmt: skip
    x = QuantizedRows(torch.full((7, 1536), -127, dtype=torch.int8), torch.ones(7, 1))
    found = Products(pool).ints(x, pack_int(layer))
    assert (found == -float(127 * 127 * 1536)).all()


def test_the_proof_accepts_exact_products(pool):
    """Ours, as the table asks it."""
    prove = prove_int8(Products(pool).ints, pack_int)
    assert prove(OpSignature(op="linear", scheme="w8a8", sizes=(("in", 576), ("out", 960)))) is None


def test_the_proof_tells_of_saturation():
    """Sums of pairs cut off at 16 bits, as hardware without VNNI gives them, are found."""

    def saturating(x, packed):
        pairs = x.values.int().unflatten(1, (-1, 2)).unsqueeze(1)
        products = pairs * packed.tensors["weight"].int().unflatten(1, (-1, 2))
        return products.sum(-1).clamp(-32768, 32767).sum(-1).float()

    def right(x, packed):
        return (x.values.int().unsqueeze(1) * packed.tensors["weight"].int()).sum(-1).float()

    signature = OpSignature(op="linear", scheme="w8a8", sizes=(("in", 64), ("out", 16)))
    assert prove_int8(right)(signature) is None
    # 127 * 127 * 2 fits 16 bits, so a row of bytes shifted to unsigned is what overflows
    told = prove_int8(lambda x, packed: shifted(x, packed, saturating))(signature)
    assert "multiplies greatest operands wrongly on this machine" in told


def shifted(x, packed, multiply):
    """Rows made unsigned by adding 128, and the weights' sums taken off again."""
    rows = QuantizedRows(x.values.int() + 128, x.scales)
    return multiply(rows, packed) - 128 * packed.tensors["weight"].int().sum(1).float()


def test_torchs_product_is_offered_only_where_it_is_right():
    """What the table believes is what this machine computes."""
    signature = OpSignature(op="linear", scheme="w8a8", sizes=(("in", 1536), ("out", 64)))
    told = prove_int8(int_mm)(signature)
    high = torch.full((17, 1536), 127, dtype=torch.int8)
    layer = PackedLinear(
        "w", "w8a8", 1536, 64,
        {"weight": torch.full((64, 1536), 127, dtype=torch.int8), "scales": torch.ones(64)},
        inputs="int8",
    )  # fmt: skip
    right = bool((int_mm(QuantizedRows(high, torch.ones(17, 1)), layer) == 127 * 127 * 1536).all())
    assert right or told is not None


VNNI = """
    import torch
    from enginebay.plugins.kernels import cpu_features
    cpu_features.features = lambda: frozenset(("avx512f", "avx512vnni"))
    from enginebay.plugins.kernels import cpu_products
    from enginebay.plugins.kernels.cpu_lanes import INT, INTS, WIDTH, ir
    from enginebay.plugins.kernels.cpu_products import BYTE

    def dot(builder, total, row, weight):
        many, wide = ir.VectorType(BYTE, 64), ir.VectorType(INT, 64)
        product = builder.mul(
            builder.zext(builder.bitcast(row, many), wide),
            builder.sext(builder.bitcast(weight, many), wide),
        )
        for first in range(4):
            lanes = ir.Constant(INTS, list(range(first, 64, 4)))
            total = builder.add(total, builder.shuffle_vector(product, product, lanes))
        return total

    cpu_products.DOT = dot
    assert (cpu_products.GROUP, cpu_products.VECTORS) == (4, 4)
    from enginebay.plugins.kernels.cpu_linear import Products
    from enginebay.plugins.kernels.cpu_panels import pack_int
    from enginebay.plugins.kernels.cpu_pool import Pool
    from enginebay.plugins.kernels.int8_proof import prove_int8
    from enginebay.hookspecs.kernel import OpSignature
    prove = prove_int8(Products(Pool(1)).ints, pack_int)
    for inner, outer in ((1, 1), (63, 65), (130, 80)):
        signature = OpSignature(op="linear", sizes=(("in", inner), ("out", outer)))
        assert prove(signature) is None, prove(signature)
    from enginebay.conformance.linear_checks import check_scheme
    from enginebay.hookspecs.kernel import KernelContext
    from enginebay.plugins.kernels.cpu import CpuKernels
    check_scheme(CpuKernels(KernelContext(device="cpu", threads=1)), "w8a8-groups", "vnni")
    print("right")
"""


def test_the_layout_for_vnni_is_right_on_any_machine(tmp_path):
    """Panels of 64 columns in groups of four, unsigned rows and their start sums; the one
    instruction that this machine may lack is replaced by its definition."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(VNNI)],
        env={"NUMBA_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "right"


def test_the_instruction_for_vnni_is_emitted():
    """LLVM takes the intrinsic, and makes one instruction of it."""
    import llvmlite.binding as llvm

    from enginebay.plugins.kernels.cpu_lanes import INTS, ir
    from enginebay.plugins.kernels.cpu_products import _dot_vnni

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = ir.Module()
    module.triple = "x86_64-unknown-linux-gnu"
    function = ir.Function(module, ir.FunctionType(INTS, [INTS] * 3), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(_dot_vnni(builder, *function.args))
    machine = llvm.Target.from_triple(module.triple).create_target_machine(cpu="znver4")
    assembly = machine.emit_assembly(llvm.parse_assembly(str(module)))
    assert "vpdpbusd\t%zmm2, %zmm1, %zmm0" in assembly
