"""The two register tiles of attention: q . k for runs of 16 positions, and p . v.

Each works on 1 to 6 query rows that share a KV head, so one load of keys or values
serves them all. Every output lane is one chain of fused multiply-adds in a fixed order
(over dims, over positions): a row's bits depend neither on how many rows share the tile
nor on how many vectors of sums a machine's registers hold. Keys and values are float32
or, as ``codes``, int8, whose scales the caller knows.

Written as LLVM instructions because the sums must be unrolled into registers; as in
``cpu_lanes`` the first parameter is the IR builder.
"""

from typing import Any

from numba import types
from numba.core import cgutils

from .cpu_features import wide
from .cpu_lanes import FLOAT, INTS, VECTOR, WIDTH, constant, emit_fma, emit_splat, emitted, ir
from .cpu_memory import LONG, emit_load, emit_store, float_pointer, long_pointer
from .cpu_products import BYTE, MAX_ROWS, by_rows

BYTES = ir.VectorType(BYTE, WIDTH)


def vectors(rows: int) -> int:
    """Vectors of sums a row, so that 8 to 12 registers are chains that run side by side:
    fewer would wait for each other, more would not leave AVX2's 16 registers enough for
    what is multiplied (measured: 14 GFLOP/s instead of 72 for three rows)."""
    if wide():
        return 4 if rows <= 3 else 2
    return (4, 2, 1)[min(rows, 3) - 1]


def emit_codes(builder: Any, address: Any) -> Any:
    """Sixteen int8 at an address, as float32."""
    place = builder.inttoptr(address, BYTES.as_pointer())
    return builder.sitofp(builder.sext(builder.load(place, align=1), INTS), VECTOR)


def emit_floats(builder: Any, address: Any) -> Any:
    """Sixteen float32 at an address."""
    return emit_load(builder, builder.inttoptr(address, FLOAT.as_pointer()), LONG(0))


def _by_width(builder: Any, start: Any, stop: Any, most: int, emit: Any) -> None:
    """``emit(index, count)`` for index from start to stop: ``most`` at a time, then 1."""
    at = cgutils.alloca_once_value(builder, start)
    for count in (most, 1) if most > 1 else (1,):
        check, body, end = (builder.append_basic_block(f"width.{count}") for _ in range(3))
        builder.branch(check)
        builder.position_at_end(check)
        after = builder.add(builder.load(at), LONG(count))
        builder.cbranch(builder.icmp_signed("<=", after, stop), body, end)
        builder.position_at_end(body)
        emit(builder.load(at), count)
        builder.store(after, at)
        builder.branch(check)
        builder.position_at_end(end)


def _accumulate(builder: Any, sums: list[list[Any]], factors: list[Any], read: list[Any]) -> None:
    """sums[r][n] += factors[r] * read[n], for scalars ``factors``."""
    for row, factor in zip(sums, factors, strict=True):
        spread = emit_splat(builder, factor)
        for place, values in zip(row, read, strict=True):
            builder.store(emit_fma(builder, spread, values, builder.load(place)), place)


def _places(builder: Any, rows: int, count: int) -> list[list[Any]]:
    """Sums of each row; LLVM makes registers of them."""
    return [[cgutils.alloca_once(builder, VECTOR) for _ in range(count)] for _ in range(rows)]


def _score_tile(codes: bool) -> Any:
    size, read = (1, emit_codes) if codes else (4, emit_floats)

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
    def score_tile(
        builder: Any,
        rows: Any,
        q: Any,
        dims: Any,
        runs: Any,
        num_runs: Any,
        k_step: Any,
        out: Any,
        out_step: Any,
    ) -> None:
        """out[r, place : place + 16] = sum over d < dims of q[d, r] * k[d, 0:16], d ascending,
        for every run.

        :param q: [dims, MAX_ROWS]
        :param runs: pairs: the address of k, rows of 16 readable elements ``k_step``
            apart, and its place
        :param out: rows ``out_step`` apart
        """

        def emit(count: int) -> None:
            def some(run: Any, width: int) -> None:
                sums = _places(builder, count, width)
                for place in (place for row in sums for place in row):
                    builder.store(constant(0.0), place)
                pairs = [builder.mul(builder.add(run, LONG(n)), LONG(2)) for n in range(width)]
                starts = [builder.load(builder.gep(runs, [pair])) for pair in pairs]
                with cgutils.for_range(builder, dims) as loop:
                    skip = builder.mul(builder.mul(loop.index, k_step), LONG(size))
                    keys = [read(builder, builder.add(start, skip)) for start in starts]
                    first = builder.mul(loop.index, LONG(MAX_ROWS))
                    spots = [builder.add(first, LONG(row)) for row in range(count)]
                    factors = [builder.load(builder.gep(q, [spot])) for spot in spots]
                    _accumulate(builder, sums, factors, keys)
                for n, pair in enumerate(pairs):
                    place = builder.load(builder.gep(runs, [builder.add(pair, LONG(1))]))
                    for row in range(count):
                        target = builder.add(builder.mul(LONG(row), out_step), place)
                        emit_store(builder, out, target, builder.load(sums[row][n]))

            _by_width(builder, LONG(0), num_runs, vectors(count), some)

        by_rows(builder, rows, emit)

    return score_tile


def _value_tile(codes: bool) -> Any:
    size, read = (1, emit_codes) if codes else (4, emit_floats)

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

        :param v_rows: addresses of v[i, :], each readable up to a multiple of 16 elements
        :param out: rows of ``out_step`` floats, a multiple of 16; all of them are updated
        """

        def emit(count: int) -> None:
            def some(number: Any, width: int) -> None:
                dims = [
                    builder.mul(builder.add(number, LONG(n)), LONG(WIDTH)) for n in range(width)
                ]
                starts = [builder.mul(LONG(row), out_step) for row in range(count)]
                sums = _places(builder, count, width)
                for start, row in zip(starts, sums, strict=True):
                    for dim, place in zip(dims, row, strict=True):
                        builder.store(emit_load(builder, out, builder.add(start, dim)), place)
                skips = [builder.mul(dim, LONG(size)) for dim in dims]
                with cgutils.for_range_slice(builder, first, end, LONG(1)) as (position, _):
                    address = builder.load(builder.gep(v_rows, [position]))
                    values = [read(builder, builder.add(address, skip)) for skip in skips]
                    spots = [builder.mul(LONG(row), p_step) for row in range(count)]
                    spots = [builder.add(spot, position) for spot in spots]
                    factors = [builder.load(builder.gep(p, [spot])) for spot in spots]
                    _accumulate(builder, sums, factors, values)
                for start, row in zip(starts, sums, strict=True):
                    for dim, place in zip(dims, row, strict=True):
                        emit_store(builder, out, builder.add(start, dim), builder.load(place))

            chunks = builder.sdiv(out_step, LONG(WIDTH))
            _by_width(builder, LONG(0), chunks, vectors(count), some)

        by_rows(builder, rows, emit)

    return value_tile


score_tile, score_codes = _score_tile(False), _score_tile(True)
value_tile, value_codes = _value_tile(False), _value_tile(True)
