"""The register tiles of matrix products: 1 to 6 rows times one panel of columns.

A panel is ``COLUMNS`` neighbouring outputs of a layer; their weights lie together, so that
a product streams one piece of memory. Lanes are outputs: float sums are chains over k in
ascending order, integer sums are exact in any order. Either way an output's bits depend on
its row and its column alone, not on how many rows share the tile.

Integer products take k in groups. With VNNI a group is four: unsigned bytes of a row
(shifted by 128, which the layer's ``start`` sums take back) times signed bytes of a weight,
added to int32 by one instruction that can't overflow. Elsewhere it is two: int16 times
int16, added in pairs to int32. Products of int8 in int16 pairs by ``vpmaddubsw``, which
saturates, are not used.
"""

from collections.abc import Callable
from typing import Any, Final

from numba import types
from numba.core import cgutils

from .cpu_features import features, wide
from .cpu_lanes import INT, INTS, VECTOR, WIDTH, constant, emit_fma, emit_splat, emitted, ir
from .cpu_memory import LONG

MAX_ROWS: Final = 6
VECTORS: Final = 4 if wide() else 1
"""Vectors of 16 columns in a panel: with 6 rows, 24 of 32 registers hold sums, or (as pairs
of eight lanes) 12 of 16."""
COLUMNS: Final = WIDTH * VECTORS

VNNI: Final = "avx512vnni" in features()
GROUP: Final = 4 if VNNI else 2
"""Values of k that one step multiplies."""
ROW_BYTES: Final = 4 // GROUP
"""Bytes of one prepared value of a row: a group fills 32 bits."""

BYTE = ir.IntType(8)
SHORT = ir.IntType(16)


def by_rows(builder: Any, rows: Any, emit: Callable[[int], None]) -> None:
    """Branch to the code for exactly ``rows`` rows, 1 .. MAX_ROWS."""
    end = builder.append_basic_block("rows.end")
    switch = builder.switch(rows, end)
    for count in range(1, MAX_ROWS + 1):
        block = builder.append_basic_block(f"rows.{count}")
        switch.add_case(LONG(count), block)
        builder.position_at_end(block)
        emit(count)
        builder.branch(end)
    builder.position_at_end(end)


def at(builder: Any, address: Any, offset: Any, kind: Any) -> Any:
    """A pointer to ``kind``, ``offset`` bytes from an address."""
    return builder.inttoptr(builder.add(address, offset), kind.as_pointer())


def _vectors(kind: Any, count: int, builder: Any) -> list[list[Any]]:
    """Places for the sums of ``count`` rows; LLVM keeps them in registers."""
    return [[cgutils.alloca_once(builder, kind) for _ in range(VECTORS)] for _ in range(count)]


def _row(builder: Any, address: Any, row: int, step: Any) -> Any:
    return builder.add(address, builder.mul(LONG(row), step))


@emitted(types.void, *[types.intp] * 7)
def float_tile(
    builder: Any, rows: Any, x: Any, x_step: Any, w: Any, steps: Any, out: Any, out_step: Any
) -> None:
    """out[r, :] = sum over k < steps of x[r, k] * w[k, :], k ascending, fused.

    Addresses of float32; distances between rows in bytes.

    :param w: [steps, COLUMNS]
    """

    def emit(count: int) -> None:
        sums = _vectors(VECTOR, count, builder)
        for place in (place for row in sums for place in row):
            builder.store(constant(0.0), place)
        with cgutils.for_range(builder, steps) as loop:
            first = builder.mul(loop.index, LONG(4 * COLUMNS))
            weights = [
                builder.load(at(builder, w, builder.add(first, LONG(64 * v)), VECTOR), align=4)
                for v in range(VECTORS)
            ]
            for r, row in enumerate(sums):
                start = _row(builder, x, r, x_step)
                place = at(builder, start, builder.mul(loop.index, LONG(4)), VECTOR.element)
                spread = emit_splat(builder, builder.load(place))
                for weight, sum_ in zip(weights, row, strict=True):
                    total = emit_fma(builder, spread, weight, builder.load(sum_))
                    builder.store(total, sum_)
        _give(builder, sums, out, out_step, VECTOR)

    by_rows(builder, rows, emit)


@emitted(types.void, *[types.intp] * 8)
def int_tile(
    builder: Any,
    rows: Any,
    x: Any,
    x_step: Any,
    w: Any,
    steps: Any,
    start: Any,
    out: Any,
    out_step: Any,
) -> None:
    """out[r, :] = start[:] + sum over groups of k of x[r, k] * w[:, k], exact in int32.

    :param x: rows of groups, as ``prepare_row`` makes them; distances in bytes
    :param w: int8 [steps, COLUMNS, GROUP]
    :param start: int32 [COLUMNS], or address 0 for zeros
    :param out: int32
    """

    def emit(count: int) -> None:
        sums = _vectors(INTS, count, builder)
        for row in sums:
            for v, place in enumerate(row):
                builder.store(_begin(builder, start, v), place)
        with cgutils.for_range(builder, steps) as loop:
            first = builder.mul(loop.index, LONG(COLUMNS * GROUP))
            weights = [_weights(builder, w, first, v) for v in range(VECTORS)]
            for r, row in enumerate(sums):
                place = at(
                    builder,
                    _row(builder, x, r, x_step),
                    builder.mul(loop.index, LONG(GROUP * ROW_BYTES)),
                    INT,
                )
                spread = emit_splat(builder, builder.load(place, align=4), INTS)
                for weight, sum_ in zip(weights, row, strict=True):
                    builder.store(DOT(builder, builder.load(sum_), spread, weight), sum_)
        _give(builder, sums, out, out_step, INTS)

    by_rows(builder, rows, emit)


def _begin(builder: Any, start: Any, vector: int) -> Any:
    """What a sum starts with."""
    if not VNNI:
        return ir.Constant(INTS, [0] * WIDTH)
    return builder.load(at(builder, start, LONG(64 * vector), INTS), align=4)


def _weights(builder: Any, w: Any, first: Any, vector: int) -> Any:
    """One group of k for 16 columns, as the dot instruction takes it."""
    kind = ir.VectorType(BYTE, WIDTH * GROUP)
    place = at(builder, w, builder.add(first, LONG(WIDTH * GROUP * vector)), kind)
    raw = builder.load(place, align=1)
    if VNNI:
        return builder.bitcast(raw, INTS)
    return builder.sext(raw, ir.VectorType(SHORT, WIDTH * GROUP))


def _give(builder: Any, sums: list[list[Any]], out: Any, out_step: Any, kind: Any) -> None:
    for r, row in enumerate(sums):
        for v, place in enumerate(row):
            target = at(builder, _row(builder, out, r, out_step), LONG(64 * v), kind)
            builder.store(builder.load(place), target, align=4)


def _dot_vnni(builder: Any, total: Any, row: Any, weight: Any) -> Any:
    """Four unsigned bytes of a row times four signed bytes of each column."""
    kind = ir.FunctionType(INTS, [INTS, INTS, INTS])  # newer LLVM reads it as bytes
    call = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")
    return builder.call(call, [total, row, weight])


def _dot_pairs(builder: Any, total: Any, row: Any, weight: Any) -> Any:
    """Two int16 of a row times two of each column, eight columns at a time."""
    half = ir.VectorType(SHORT, WIDTH)
    eight = ir.VectorType(INT, WIDTH // 2)
    kind = ir.FunctionType(eight, [half, half])
    call = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx2.pmadd.wd")
    pairs = builder.bitcast(row, ir.VectorType(SHORT, 2 * WIDTH))
    parts = []
    for first in (0, WIDTH):
        lanes = ir.Constant(ir.VectorType(INT, WIDTH), list(range(first, first + WIDTH)))
        parts.append(
            builder.call(
                call,
                [builder.shuffle_vector(each, each, lanes) for each in (pairs, weight)],
            )
        )
    both = builder.shuffle_vector(*parts, ir.Constant(INTS, list(range(WIDTH))))
    return builder.add(total, both)


def _dot_plain(builder: Any, total: Any, row: Any, weight: Any) -> Any:
    """As ``_dot_pairs``, in instructions that every machine has."""
    wide_ints = ir.VectorType(INT, 2 * WIDTH)
    pairs = builder.bitcast(row, ir.VectorType(SHORT, 2 * WIDTH))
    product = builder.mul(builder.sext(pairs, wide_ints), builder.sext(weight, wide_ints))
    for first in (0, 1):
        lanes = ir.Constant(INTS, list(range(first, 2 * WIDTH, 2)))
        total = builder.add(total, builder.shuffle_vector(product, product, lanes))
    return total


DOT: Final = _dot_vnni if VNNI else _dot_pairs if "avx2" in features() else _dot_plain


@emitted(types.void, types.intp, types.intp, types.intp, types.intp)
def prepare_row(builder: Any, values: Any, count: Any, end: Any, out: Any) -> None:
    """A row of int8 as ``int_tile`` reads it, zeros from ``count`` to ``end``.

    :param end: a multiple of ``GROUP``
    """
    kind = ir.IntType(8 * ROW_BYTES)
    whole = builder.and_(count, LONG(-WIDTH))
    with cgutils.for_range_slice(builder, LONG(0), whole, LONG(WIDTH)) as (index, _):
        raw = builder.load(at(builder, values, index, ir.VectorType(BYTE, WIDTH)), align=1)
        place = at(builder, out, builder.mul(index, LONG(ROW_BYTES)), ir.VectorType(kind, WIDTH))
        builder.store(_prepared(builder, raw, ir.VectorType(BYTE, WIDTH), place), place, align=1)
    with cgutils.for_range_slice(builder, whole, count, LONG(1)) as (index, _):
        place = at(builder, out, builder.mul(index, LONG(ROW_BYTES)), kind)
        raw = builder.load(at(builder, values, index, BYTE))
        builder.store(_prepared(builder, raw, BYTE, place), place, align=1)
    with cgutils.for_range_slice(builder, count, end, LONG(1)) as (index, _):
        place = at(builder, out, builder.mul(index, LONG(ROW_BYTES)), kind)
        builder.store(kind(0), place, align=1)


def _prepared(builder: Any, raw: Any, kind: Any, place: Any) -> Any:
    """Shifted to unsigned for VNNI, else widened."""
    if not VNNI:
        return builder.sext(raw, place.type.pointee)
    shift = ir.Constant(kind, [-128] * WIDTH if kind != BYTE else -128)
    return builder.xor(raw, shift)
