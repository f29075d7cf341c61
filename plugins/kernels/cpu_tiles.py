"""The two register tiles of attention: q . k for 16 positions, and p . v for 16 dims.

Each works on 1 to 6 query rows that share a KV head, so one load of keys or values
serves them all. Every output lane is one chain of fused multiply-adds in a fixed order
(over dims, over positions): a row's bits do not depend on how many rows share the tile.
With 6 rows and AVX2, 12 of the 16 registers hold sums.

Written as LLVM instructions because the rows must be unrolled into registers; as in
``cpu_lanes`` the first parameter is the IR builder.
"""

from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils

from .cpu_lanes import FLOAT, VECTOR, WIDTH, constant, emit_fma, emit_splat, emitted
from .cpu_memory import LONG, emit_load, emit_store, float_pointer, long_pointer

MAX_ROWS = 6


def _by_rows(builder: Any, rows: Any, emit: Callable[[int], None]) -> None:
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


def _accumulate(builder: Any, sums: list[Any], factors: list[Any], values: Any) -> None:
    """sums[r] += factors[r] * values, for scalars ``factors``."""
    for place, factor in zip(sums, factors, strict=True):
        spread = emit_splat(builder, factor)
        builder.store(emit_fma(builder, spread, values, builder.load(place)), place)


def _at(builder: Any, pointer: Any, row: int, stride: Any, index: Any) -> Any:
    """The scalar ``pointer[row * stride + index]``."""
    place = builder.add(builder.mul(LONG(row), stride), index)
    return builder.load(builder.gep(pointer, [place]))


@emitted(
    types.void,
    types.intp,
    float_pointer,
    types.intp,
    types.intp,
    float_pointer,
    types.intp,
    float_pointer,
    types.intp,
)
def score_tile(
    builder: Any,
    rows: Any,
    q: Any,
    q_step: Any,
    dims: Any,
    k: Any,
    k_step: Any,
    out: Any,
    out_step: Any,
) -> None:
    """out[r, 0:16] = sum over d < dims of q[r, d] * k[d, 0:16], d ascending.

    :param q: rows ``q_step`` apart
    :param k: rows of 16 readable floats, ``k_step`` apart
    :param out: rows ``out_step`` apart
    """

    def emit(count: int) -> None:
        sums = [cgutils.alloca_once(builder, VECTOR) for _ in range(count)]
        for place in sums:
            builder.store(constant(0.0), place)
        with cgutils.for_range(builder, dims) as loop:
            keys = emit_load(builder, k, builder.mul(loop.index, k_step))
            factors = [_at(builder, q, row, q_step, loop.index) for row in range(count)]
            _accumulate(builder, sums, factors, keys)
        for row, place in enumerate(sums):
            emit_store(builder, out, builder.mul(LONG(row), out_step), builder.load(place))

    _by_rows(builder, rows, emit)


@emitted(
    types.void,
    types.intp,
    float_pointer,
    types.intp,
    long_pointer,
    types.intp,
    types.intp,
    float_pointer,
    types.intp,
)
def value_tile(
    builder: Any,
    rows: Any,
    p: Any,
    p_step: Any,
    v_rows: Any,
    first: Any,
    end: Any,
    out: Any,
    out_step: Any,
) -> None:
    """out[r, :] += sum over first <= i < end of p[r, i] * v[i, :], i ascending.

    :param v_rows: addresses of v[i, :], each readable up to a multiple of 16 floats
    :param out: rows of ``out_step`` floats, a multiple of 16; all of them are updated
    """

    def emit(count: int) -> None:
        sums = [cgutils.alloca_once(builder, VECTOR) for _ in range(count)]
        with cgutils.for_range_slice(builder, LONG(0), out_step, LONG(WIDTH)) as (dim, _):
            places = [builder.add(builder.mul(LONG(row), out_step), dim) for row in range(count)]
            for row, place in enumerate(sums):
                builder.store(emit_load(builder, out, places[row]), place)
            with cgutils.for_range_slice(builder, first, end, LONG(1)) as (position, _):
                address = builder.load(builder.gep(v_rows, [position]))
                source = builder.inttoptr(address, FLOAT.as_pointer())
                values = emit_load(builder, source, dim)
                factors = [_at(builder, p, row, p_step, position) for row in range(count)]
                _accumulate(builder, sums, factors, values)
            for row, place in enumerate(sums):
                emit_store(builder, out, places[row], builder.load(place))

    _by_rows(builder, rows, emit)
