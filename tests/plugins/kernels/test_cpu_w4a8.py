"""4-bit codes under int8 rows on the CPU: against float64, and the same bits for a row
everywhere."""

import dataclasses
import subprocess
import sys
import textwrap

import pytest
import torch

from enginebay.conformance.closeness import check_row_invariance
from enginebay.conformance.sample_layers import as_inputs, exact_rows, sample, sample_rows
from enginebay.hookspecs.kernel import QuantizedRows
from enginebay.plugins.kernels import cpu_codes, cpu_pool
from enginebay.plugins.kernels.cpu_codes_panels import pack_quads

SHAPES = [(8, 5, 0), (96, 70, 32), (128, 64, 128), (40, 33, 40), (72, 3, 24), (576, 65, 0)]
"""Columns, outputs, columns of a group."""


@pytest.fixture(scope="module")
def codes():
    """On one thread."""
    return cpu_codes.Codes(cpu_pool.Pool(1))


def layer(columns, outputs, group=0, **more):
    """A random one, as given and as laid out."""
    given = sample("w4a8", columns, outputs, group=group, **more)
    return given, pack_quads(given.packed)


@pytest.mark.parametrize(("columns", "outputs", "group"), SHAPES)
def test_products_are_right(codes, columns, outputs, group):
    """Odd groups, few outputs, every number of rows in a tile: float64 says the same."""
    given, ready = layer(columns, outputs, group)
    for count in (1, 2, 3, 4, 5, 6, 50):
        rows = sample_rows(given.packed, count, count)
        x = exact_rows(given.packed, rows)
        right = x @ given.weight.T + given.packed.bias.double()
        terms = x.abs() @ given.weight.abs().T + given.packed.bias.abs()
        found = codes.quads(as_inputs(given.packed, rows), ready)
        assert ((found.double() - right).abs() <= 1e-6 * terms).all()


def test_a_row_has_the_same_bits_everywhere(codes):
    """Alone, in any order, in parts: tiles and blocks of rows show nowhere."""
    given, ready = layer(192, 100, 64)
    rows = sample_rows(given.packed, 101)
    check_row_invariance(lambda part: codes.quads(as_inputs(given.packed, part), ready), rows)


def test_threads_change_no_bit(monkeypatch, codes):
    """Two threads, an item a panel."""
    given, ready = layer(64, 1000, 32)
    x = as_inputs(given.packed, sample_rows(given.packed, 11))
    alone = codes.quads(x, ready)
    monkeypatch.setattr(cpu_pool, "TINY", 0)
    assert torch.equal(cpu_codes.Codes(cpu_pool.Pool(2)).quads(x, ready), alone)


def test_a_residual_is_added_to_in_place(codes):
    """The same tensor comes back; a step without rows gives none."""
    given, ready = layer(32, 70)
    x, residual = as_inputs(given.packed, sample_rows(given.packed, 9)), torch.randn(9, 70)
    before = residual.clone()
    assert codes.quads(x, ready, residual) is residual
    assert torch.equal(residual, before + codes.quads(x, ready))
    none = as_inputs(given.packed, sample_rows(given.packed, 0))
    assert codes.quads(none, ready).shape == (0, 70)


def test_what_compiled_code_can_not_read_is_refused(codes):
    """Rows of another width, type or number of scales; a layer that was not laid out."""
    given, ready = layer(64, 8, 32)
    x = as_inputs(given.packed, sample_rows(given.packed, 2))
    for wrong in (
        QuantizedRows(x.values[:, :32].contiguous(), x.scales),
        QuantizedRows(x.values.int(), x.scales),
        QuantizedRows(x.values, x.scales[:, :1].contiguous()),
        QuantizedRows(x.values, x.scales.double()),
    ):
        with pytest.raises(ValueError, match="needs torch"):
            codes.quads(wrong, ready)
    with pytest.raises(TypeError, match="'sample' was not laid out"):
        codes.quads(x, given.packed)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"input_group": 0}, "the same groups of columns"),
        ({"group_size": 12, "input_group": 12}, "a multiple of 8 columns, not of 12"),
        ({"scheme": "int4"}, "not 'int4'"),
    ],
)
def test_groups_that_do_not_fit_are_declined(codes, change, reason):
    """Weights and rows in different groups, and groups that bytes of codes don't fill."""
    packed = dataclasses.replace(layer(96, 8, 32)[0].packed, **change)
    signature = packed.signature("linear", "float32")
    (offer,) = (
        each for each in codes.offers() if each.name == "w4a8-panels" and each.op == "linear"
    )
    assert reason in offer.supports(signature)


ELSEWHERE = """
    import sys
    from enginebay.plugins.kernels import cpu_features
    vnni = sys.argv[1] == "vnni"
    cpu_features.features = lambda: frozenset(("avx512f", "avx512vnni") if vnni else ())
    from enginebay.plugins.kernels import cpu_products
    cpu_products.MAX_ROWS = 2 if vnni else 4  # each number of rows is code of its own
    from enginebay.plugins.kernels import cpu_w4a8_tile
    from enginebay.plugins.kernels.cpu_lanes import INT, INTS, ir

    def dot(builder, total, codes, x):
        wide = ir.VectorType(INT, 64)
        product = builder.mul(builder.zext(codes, wide), builder.sext(x, wide))
        for first in range(4):
            lanes = ir.Constant(INTS, list(range(first, 64, 4)))
            total = builder.add(total, builder.shuffle_vector(product, product, lanes))
        return total

    if vnni:
        cpu_w4a8_tile._dot = dot
    assert cpu_w4a8_tile.VECTORS == (4 if vnni else 1)
    from enginebay.conformance.linear_checks import check_scheme
    from enginebay.conformance.product_extremes import check_nibble_extremes
    from enginebay.plugins.kernels.cpu_codes import Codes
    from enginebay.plugins.kernels.cpu_pool import Pool
    check_scheme(Codes(Pool(1)), "w4a8", "elsewhere")
    check_nibble_extremes(Codes(Pool(1)))
    print("right")
"""


@pytest.mark.parametrize("machine", ["vnni", "plain"])
def test_it_is_right_on_other_machines(tmp_path, machine):
    """Panels of 64 columns whose sums have 32 bits, the one instruction for them replaced by
    its definition; and instructions that every machine has."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ELSEWHERE), machine],
        env={"NUMBA_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "right"
