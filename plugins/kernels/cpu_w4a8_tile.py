"""The register tile of 4-bit codes times int8 rows: 1 to 6 rows, a panel of ``COLUMNS``.

Sums over 32 columns of a group, or fewer, are of integers, exact in any order. A lane's
output is one chain: what the offsets add, group by group, then these sums, scaled, in
ascending order. How many rows a tile takes at once shows in no bit.

Four values of a row meet four codes of each lane at once. A code is 15 at most, so products
of unsigned codes and signed values can be added in pairs in 16 bits, eight times over: 8 *
2 * 15 * 127 = 30,480, where products of two int8 have no such room. With VNNI the four go
straight to 32 bits.
"""

from typing import Any, Final

from numba import types
from numba.core import cgutils

from .cpu_features import features
from .cpu_lanes import FLOAT, INT, INTS, VECTOR, WIDTH, constant, emit_fma, emit_splat, emitted, ir
from .cpu_memory import LONG
from .cpu_products import BYTE, COLUMNS, SHORT, VECTORS, VNNI, at, by_rows

STEP: Final = 8
"""Columns whose codes lie together: the low halves of a lane's four bytes are the codes of
the first four, the high halves those of the others."""
ROOM: Final = 4
"""Steps whose sums of pairs 16 bits hold."""
BYTES = ir.VectorType(BYTE, 4 * WIDTH)
SHORTS = ir.VectorType(SHORT, 2 * WIDTH)
SUMS: Final = INTS if VNNI else SHORTS
"""What the sums of ``ROOM`` steps are held in."""
Cell = tuple[int, int]
"""Row and vector of a tile."""


@emitted(types.void, *[types.intp] * 11)
def w4a8_tile(
    builder: Any, rows: Any, x: Any, x_step: Any, codes: Any, size: Any, groups: Any,
    scales: Any, offsets: Any, x_scales: Any, x_sums: Any, out: Any,
) -> None:  # fmt: skip
    """out[r, :] = x[r] times a panel of codes 0 .. 15.

    Addresses of float32 unless said; an int8 row stands for its values times its scales.

    :param x: rows of int8, ``x_step`` bytes apart, of ``size * groups`` columns
    :param codes: bytes [groups * size / STEP, VECTORS, 16 lanes, 4]
    :param size: a multiple of ``STEP``
    :param scales: [groups, COLUMNS], as ``offsets``
    :param x_scales: [rows, groups]
    :param x_sums: [rows, groups], the sum of each group's values times its scale
    """
    tile = _Tile(
        builder,
        x=x,
        x_step=x_step,
        codes=codes,
        steps=builder.sdiv(size, LONG(STEP)),
        groups=groups,
        scales=scales,
        offsets=offsets,
        x_scales=x_scales,
        x_sums=x_sums,
        out=out,
    )
    by_rows(builder, rows, tile.emit)


@emitted(types.float32, types.intp, types.intp)
def sum_bytes(builder: Any, address: Any, size: Any) -> Any:
    """The sum of ``size`` int8, a multiple of ``STEP``, as float32."""
    eight, sums = ir.VectorType(BYTE, STEP), ir.VectorType(INT, STEP)
    total = cgutils.alloca_once(builder, sums)
    builder.store(ir.Constant(sums, [0] * STEP), total)
    with cgutils.for_range_slice(builder, LONG(0), size, LONG(STEP)) as (index, _):
        values = builder.load(at(builder, address, index, eight), align=1)
        builder.store(builder.add(builder.load(total), builder.sext(values, sums)), total)
    found = builder.load(total)
    for count in (4, 2, 1):
        halves = (_order(list(range(first, first + count))) for first in (0, count))
        found = builder.add(*(builder.shuffle_vector(found, found, half) for half in halves))
    return builder.sitofp(builder.extract_element(found, INT(0)), FLOAT)


class _Tile:
    """Emits the tile for one number of rows."""

    def __init__(self, builder: Any, **given: Any) -> None:
        self.builder = builder
        self.given = given

    def emit(self, count: int) -> None:
        """The whole panel for ``count`` rows."""
        builder = self.builder
        cells = [(row, vector) for vector in range(VECTORS) for row in range(count)]
        totals = {cell: cgutils.alloca_once(builder, VECTOR) for cell in cells}
        for total in totals.values():
            builder.store(constant(0.0), total)
        with cgutils.for_range(builder, self.given["groups"]) as loop:
            for (row, vector), total in totals.items():
                self._offset(loop.index, row, vector, total)
        for (row, vector), total in totals.items():
            builder.store(builder.load(total), self._vector("out", LONG(row), vector), align=4)
        with cgutils.for_range(builder, self.given["groups"]) as loop:
            self._multiply(loop.index, cells)

    def _offset(self, group: Any, row: int, vector: int, total: Any) -> None:
        """Add what a group's offset makes of the sum of its values."""
        builder = self.builder
        offset = builder.load(self._vector("offsets", group, vector), align=4)
        value = emit_fma(builder, self._of_row("x_sums", row, group), offset, builder.load(total))
        builder.store(value, total)

    def _multiply(self, group: Any, cells: list[Cell]) -> None:
        """Add the products of a group to the output, ``ROOM`` steps at a time."""
        builder, steps = self.builder, self.given["steps"]
        start = builder.mul(group, steps)
        with cgutils.for_range_slice(builder, LONG(0), steps, LONG(ROOM)) as (step, _):
            left = builder.sub(steps, step)
            some = builder.select(builder.icmp_signed("<", left, LONG(ROOM)), left, LONG(ROOM))
            sums = self._some(builder.add(start, step), _hidden(builder, some), cells)
            for (row, vector), sum_ in sums.items():
                self._scale(group, row, vector, builder.load(sum_))

    def _some(self, start: Any, steps: Any, cells: list[Cell]) -> dict[Cell, Any]:
        """The sums over steps ``start`` and on, no more than ``ROOM``."""
        builder = self.builder
        sums = {cell: cgutils.alloca_once(builder, SUMS) for cell in cells}
        for sum_ in sums.values():
            builder.store(ir.Constant(SUMS, [0] * SUMS.count), sum_)
        with cgutils.for_range(builder, steps) as loop:
            step = builder.add(start, loop.index)
            for half in range(2):
                codes = {
                    vector: self._codes(step, half, vector)
                    for vector in {vector: 0 for _, vector in cells}
                }
                for row, vector in cells:
                    sum_, x = sums[row, vector], self._x(row, step, half)
                    builder.store(_dot(builder, builder.load(sum_), codes[vector], x), sum_)
        return sums

    def _codes(self, step: Any, half: int, vector: int) -> Any:
        """Four codes of each lane, as unsigned bytes."""
        builder = self.builder
        index = builder.add(builder.mul(step, LONG(VECTORS)), LONG(vector))
        offset = builder.mul(index, LONG(4 * WIDTH))
        place = at(builder, self.given["codes"], offset, SHORTS)
        both = builder.load(place, align=1)
        if half:
            both = builder.lshr(both, ir.Constant(SHORTS, [4] * SHORTS.count))
        return builder.and_(builder.bitcast(both, BYTES), ir.Constant(BYTES, [15] * BYTES.count))

    def _x(self, row: int, step: Any, half: int) -> Any:
        """Four values of a row, in every lane."""
        builder = self.builder
        offset = builder.add(builder.mul(LONG(row), self.given["x_step"]), LONG(4 * half))
        offset = builder.add(offset, builder.mul(step, LONG(STEP)))
        four = builder.load(at(builder, self.given["x"], offset, INT), align=1)
        return builder.bitcast(emit_splat(builder, four, INTS), BYTES)

    def _vector(self, name: str, row: Any, vector: int) -> Any:
        """Place of a vector in [rows or groups, COLUMNS]."""
        builder = self.builder
        offset = builder.add(builder.mul(row, LONG(4 * COLUMNS)), LONG(4 * WIDTH * vector))
        return at(builder, self.given[name], offset, VECTOR)

    def _of_row(self, name: str, row: int, group: Any) -> Any:
        """A float of [rows, groups], in every lane."""
        builder = self.builder
        index = builder.add(builder.mul(LONG(row), self.given["groups"]), group)
        place = at(builder, self.given[name], builder.shl(index, LONG(2)), FLOAT)
        return emit_splat(builder, builder.load(place))

    def _scale(self, group: Any, row: int, vector: int, sum_: Any) -> None:
        """Add a sum, scaled, to the output."""
        builder = self.builder
        place = self._vector("out", LONG(row), vector)
        scale = builder.load(self._vector("scales", group, vector), align=4)
        whole = sum_ if VNNI else _widened(builder, sum_)
        part = builder.fmul(builder.sitofp(whole, VECTOR), scale)
        factor = self._of_row("x_scales", row, group)
        value = emit_fma(builder, part, factor, builder.load(place, align=4))
        builder.store(value, place, align=4)


def _hidden(builder: Any, value: Any) -> Any:
    """The same integer, of which LLVM knows nothing: it would unroll a loop of four steps
    until the sums no longer fit the registers."""
    return builder.asm(ir.FunctionType(LONG, [LONG]), "", "=r,0", [value], False)


def _dot(builder: Any, total: Any, codes: Any, x: Any) -> Any:
    """Four unsigned codes of each lane times four signed values, added to the sums."""
    if VNNI:
        kind = ir.FunctionType(INTS, [INTS, INTS, INTS])  # newer LLVM reads it as bytes
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")
        return builder.call(call, [total, builder.bitcast(codes, INTS), builder.bitcast(x, INTS)])
    if "avx2" not in features():
        return builder.add(total, _pairs(builder, codes, x))
    half = ir.VectorType(BYTE, 2 * WIDTH)
    kind = ir.FunctionType(ir.VectorType(SHORT, WIDTH), [half, half])
    call = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx2.pmadd.ub.sw")
    return builder.add(total, _by_halves(builder, call, codes, x))


def _widened(builder: Any, sums: Any) -> Any:
    """int32 [16] of int16 [32]: each two neighbours added."""
    ones = ir.Constant(SHORTS, [1] * SHORTS.count)
    if "avx2" not in features():
        wide = builder.sext(sums, ir.VectorType(INT, SHORTS.count))
        even, odd = (_every_other(builder, wide, at_) for at_ in (0, 1))
        return builder.add(even, odd)
    half = ir.VectorType(SHORT, WIDTH)
    kind = ir.FunctionType(ir.VectorType(INT, WIDTH // 2), [half, half])
    call = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx2.pmadd.wd")
    return _by_halves(builder, call, sums, ones)


def _pairs(builder: Any, codes: Any, x: Any) -> Any:
    """Products added in pairs, int16 [32], in instructions that every machine has."""
    wide = ir.VectorType(SHORT, BYTES.count)
    product = builder.mul(builder.zext(codes, wide), builder.sext(x, wide))
    return builder.add(*(_every_other(builder, product, at_) for at_ in (0, 1)))


def _every_other(builder: Any, values: Any, first: int) -> Any:
    order = _order(list(range(first, values.type.count, 2)))
    return builder.shuffle_vector(values, values, order)


def _by_halves(builder: Any, call: Any, x: Any, y: Any) -> Any:
    """An instruction of 256 bits over 512."""
    count = x.type.count
    parts = [
        builder.call(call, [builder.shuffle_vector(each, each, _order(lanes)) for each in (x, y)])
        for lanes in (list(range(count // 2)), list(range(count // 2, count)))
    ]
    return builder.shuffle_vector(*parts, _order(list(range(count // 2))))


def _order(lanes: list[int]) -> Any:
    return ir.Constant(ir.VectorType(INT, len(lanes)), lanes)
