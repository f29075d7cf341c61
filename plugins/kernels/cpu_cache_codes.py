"""int8 keys and values of the CPU kernels: written with a scale, and widened to float32.

A head's vector of one token stands for codes times a scale, which is its greatest
magnitude / 127; codes are rounded half to even. A vector with an infinity or NaN gets
the scale NaN, so that all of it comes back as NaN.
"""

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils

from .cpu_jit import inlined
from .cpu_lanes import (
    INTS,
    emitted,
    fma,
    greatest,
    lanes,
    maximum,
    splat,
    total,
    where_below,
)
from .cpu_memory import fetch, floats, store
from .cpu_products import BYTE
from .cpu_tiles import BYTES, emit_codes

ZERO = np.float32(0.0)
ONE = np.float32(1.0)
STEPS = np.float32(127.0)
NOT_A_NUMBER = np.float32(np.nan)
ROUND = np.float32(12582912.0)
"""1.5 * 2^23: adding it rounds a small number to an integer, half to even."""


@emitted(lanes, types.intp)
def load_codes(builder: Any, address: Any) -> Any:
    """Sixteen int8 as float32."""
    return emit_codes(builder, address)


@emitted(types.void, types.intp, types.intp, lanes, types.intp)
def put_codes(builder: Any, address: Any, step: Any, value: Any, count: Any) -> None:
    """The first ``count`` lanes, integers, as int8 that lie ``step`` bytes apart."""
    place = cgutils.alloca_once(builder, BYTES)
    builder.store(builder.trunc(builder.fptosi(value, INTS), BYTES), place)
    buffer = builder.bitcast(place, BYTE.as_pointer())
    with cgutils.for_range(builder, count) as loop:
        lane = builder.gep(buffer, [loop.index])
        target = builder.add(address, builder.mul(loop.index, step))
        builder.store(builder.load(lane), builder.inttoptr(target, BYTE.as_pointer()))


@inlined
def within(low: Any, x: Any, high: Any) -> Any:
    """Lanes of x, none below low or above high: a scale that is a subnormal number has
    too few digits for 127 steps of it to be the greatest magnitude."""
    x = where_below(x, low, low, x)
    return where_below(high, x, high, x)


@inlined
def scale_of(vector: Any, dims: int) -> Any:
    """The scale of one vector of ``dims`` floats: 1 for zeros."""
    zero = splat(ZERO)
    top, broken = zero, zero
    for dim in range(0, dims, 16):
        x = fetch(vector, dim, dims)
        top = maximum(top, maximum(x, zero - x))
        broken = fma(x, zero, broken)
    if total(broken) != ZERO:
        return NOT_A_NUMBER
    scale = greatest(top) / STEPS
    return scale if scale > ZERO else ONE


@inlined
def keep_codes(vector: Any, dims: int, address: int, step: int, scale: int) -> None:
    """Put one vector at ``address`` as codes ``step`` bytes apart, and its scale at ``scale``."""
    found = scale_of(vector, dims)
    floats(scale)[0] = found
    for dim in range(0, dims, 16):
        value = fetch(vector, dim, dims) / splat(found)
        value = within(splat(ZERO) - splat(STEPS), value, splat(STEPS))
        if not found > ZERO:
            value = splat(ZERO)
        value = (value + splat(ROUND)) - splat(ROUND)
        put_codes(address + dim * step, step, value, min(16, dims - dim))


@inlined
def widen(
    step: int, dims: int, padded: int, runs: int, keys: Any, v_rows: Any, first: int, end: int,
    space: int,
) -> None:  # fmt: skip
    """Turn a tile's codes to float32 at ``space``, and note that they lie there now.

    :param step: codes between a key's dims; the runs' keys then lie 16 apart
    :param keys: (address, place) of each run; ``v_rows``: addresses of first .. end - 1
    """
    at = space
    for run in range(runs):
        source, target = keys[2 * run], floats(at)
        for dim in range(dims):
            store(target, 16 * dim, load_codes(source + dim * step))
        keys[2 * run] = at
        at += 64 * dims
    for place in range(first, end):
        source, target = v_rows[place], floats(at)
        for dim in range(0, padded, 16):
            store(target, dim, load_codes(source + dim))
        v_rows[place] = at
        at += 4 * padded
