"""The register tiles of products with codes: 1 to 6 rows times a panel of 64 columns.

Codes become floats in registers, so memory carries codes alone. A panel holds 64 outputs
of a layer, four vectors of 16 lanes; how many of them a tile takes at once depends on its
rows and on the machine's registers, and shows in no bit: every lane is one chain. Over the
columns k of a group, ascending, ``part = fma(x[k], code[k], part)`` from zero; over the
groups, ascending, ``sum = fma(part, scale, sum)``, then, where there are offsets,
``sum = fma(sum of the group's x, offset, sum)``.

As in ``cpu_products``, addresses are of float32 unless said, and the first parameter, the
IR builder, is not passed by the caller.
"""

from collections.abc import Callable
from typing import Any, Final

from numba import types
from numba.core import cgutils

from .cpu_features import wide
from .cpu_lanes import FLOAT, INT, INTS, VECTOR, WIDTH, constant, emit_fma, emit_splat, emitted, ir
from .cpu_memory import LONG
from .cpu_products import BYTE, at, by_rows

COLUMNS: Final = 64
"""Of a panel."""
ROW: Final = 4 * COLUMNS
"""Bytes of a panel's row of floats."""
BYTES = ir.VectorType(BYTE, WIDTH)

HELD: Final = (4,) * 6 if wide() else (4, 2, 1, 1, 1, 1)
"""Vectors that a tile of 1, 2, .. 6 rows holds sums of: with 32 registers all, with 16 of
half the width no more than six sums."""

Multiply = Callable[[Any, int, Any], None]
"""(column of x, vector, floats of its codes): add the products to the sums."""
Decode = Callable[[Any, Any, int, Multiply], None]
"""(group, first vector, vectors, multiply): go over the columns of a group."""


class Tile:
    """What both kinds of codes share: the sums, the scales, the output."""

    def __init__(self, builder: Any, decode: Decode, **given: Any) -> None:
        self.builder = builder
        self.decode = decode
        self.given = given

    def emit(self, count: int) -> None:
        """All four vectors of the panel for ``count`` rows, some at a time."""
        builder, held = self.builder, HELD[count - 1]
        parts = [
            (row, vector, cgutils.alloca_once(builder, VECTOR))
            for vector in range(held)
            for row in range(count)
        ]

        def multiply(column: Any, vector: int, codes: Any) -> None:
            for row, of, part in parts:
                if of == vector:
                    factor = emit_splat(builder, self._x(row, column))
                    builder.store(emit_fma(builder, factor, codes, builder.load(part)), part)

        ends = LONG(0), LONG(COLUMNS // WIDTH), LONG(held)
        with cgutils.for_range_slice(builder, *ends) as (first, _):
            for row, vector, _part in parts:
                place = self._vector("out", LONG(row), first, vector)
                builder.store(constant(0.0), place, align=4)
            with cgutils.for_range(builder, self.given["groups"]) as loop:
                for *_, part in parts:
                    builder.store(constant(0.0), part)
                self.decode(loop.index, first, held, multiply)
                for row, vector, part in parts:
                    self._scale(loop.index, first, row, vector, builder.load(part))

    def _x(self, row: int, column: Any) -> Any:
        step = self.builder.mul(LONG(row), self.given["x_step"])
        offset = self.builder.add(step, self.builder.shl(column, LONG(2)))
        return self.builder.load(at(self.builder, self.given["x"], offset, FLOAT))

    def _vector(self, name: str, row: Any, first: Any, vector: int) -> Any:
        """Place of a vector in [rows or groups, 64]."""
        builder = self.builder
        lanes = builder.add(builder.mul(first, LONG(4 * WIDTH)), LONG(4 * WIDTH * vector))
        offset = builder.add(builder.mul(row, LONG(ROW)), lanes)
        return at(builder, self.given[name], offset, VECTOR)

    def _scale(self, group: Any, first: Any, row: int, vector: int, part: Any) -> None:
        """Add a group's part, scaled, to the sum in the output."""
        builder = self.builder
        place = self._vector("out", LONG(row), first, vector)
        scale = builder.load(self._vector("scales", group, first, vector), align=4)
        value = emit_fma(builder, part, scale, builder.load(place, align=4))
        if "offsets" in self.given:
            index = builder.add(builder.mul(LONG(row), self.given["groups"]), group)
            address = at(builder, self.given["x_sums"], builder.shl(index, LONG(2)), FLOAT)
            offset = builder.load(self._vector("offsets", group, first, vector), align=4)
            value = emit_fma(builder, emit_splat(builder, builder.load(address)), offset, value)
        builder.store(value, place, align=4)


@emitted(types.void, *[types.intp] * 8)
def byte_tile(
    builder: Any,
    rows: Any,
    x: Any,
    x_step: Any,
    codes: Any,
    size: Any,
    groups: Any,
    scales: Any,
    out: Any,
) -> None:
    """out[r, 0:64] = x[r] times a panel of signed bytes.

    :param x: rows ``x_step`` bytes apart, of ``size * groups`` columns
    :param codes: int8 [size * groups, 64]
    :param scales: [groups, 64]
    """

    def decode(group: Any, first: Any, vectors: int, multiply: Multiply) -> None:
        with cgutils.for_range(builder, size) as loop:
            column = builder.add(builder.mul(group, size), loop.index)
            lanes = builder.mul(first, LONG(WIDTH))
            start = builder.add(builder.mul(column, LONG(COLUMNS)), lanes)
            for vector in range(vectors):
                place = at(builder, codes, builder.add(start, LONG(WIDTH * vector)), BYTES)
                values = builder.sext(builder.load(place, align=1), INTS)
                multiply(column, vector, builder.sitofp(values, VECTOR))

    tile = Tile(builder, decode, x=x, x_step=x_step, groups=groups, scales=scales, out=out)
    by_rows(builder, rows, tile.emit)


@emitted(types.void, *[types.intp] * 10)
def nibble_tile(
    builder: Any,
    rows: Any,
    x: Any,
    x_step: Any,
    codes: Any,
    size: Any,
    groups: Any,
    scales: Any,
    offsets: Any,
    x_sums: Any,
    out: Any,
) -> None:
    """out[r, 0:64] = x[r] times a panel of 4-bit codes 0 .. 15.

    A 32-bit word holds a lane of all four vectors for two columns k: in bits 4 v .. 4 v + 3
    vector v of the even one, 16 higher the odd one. A masked word is code * 16^v, an exact
    float, and ``scales`` are given divided by 16^v: no shift for each vector.

    :param codes: words [groups * size / 2 (rounded up), 16]
    :param scales: [groups, 64], divided; ``offsets`` are not
    :param x_sums: [rows, groups], the sum of each group of x
    """
    pairs = builder.ashr(size, LONG(1))
    stored = builder.ashr(builder.add(size, LONG(1)), LONG(1))

    def decode(group: Any, first: Any, vectors: int, multiply: Multiply) -> None:
        masks = [_mask(builder, first, vector) for vector in range(vectors)]

        def words(pair: Any) -> Any:
            index = builder.add(builder.mul(group, stored), pair)
            return builder.load(at(builder, codes, builder.mul(index, LONG(64)), INTS), align=4)

        def column(values: Any, pair: Any, odd: int) -> None:
            index = builder.add(builder.mul(group, size), builder.shl(pair, LONG(1)))
            for vector, mask in enumerate(masks):
                code = builder.sitofp(builder.and_(values, mask), VECTOR)
                multiply(builder.add(index, LONG(odd)), vector, code)

        with cgutils.for_range(builder, pairs) as loop:
            both = words(loop.index)
            column(both, loop.index, 0)
            column(builder.lshr(both, ir.Constant(INTS, [16] * WIDTH)), loop.index, 1)
        with builder.if_then(builder.icmp_signed("<", pairs, stored)):
            column(words(pairs), pairs, 0)

    given = {"x": x, "x_step": x_step, "groups": groups, "scales": scales, "out": out}
    tile = Tile(builder, decode, **given, offsets=offsets, x_sums=x_sums)
    by_rows(builder, rows, tile.emit)


def _mask(builder: Any, first: Any, vector: int) -> Any:
    """The bits of a vector's codes in every word."""
    shift = builder.shl(builder.add(first, LONG(vector)), LONG(2))
    return emit_splat(builder, builder.trunc(builder.shl(LONG(15), shift), INT), INTS)
