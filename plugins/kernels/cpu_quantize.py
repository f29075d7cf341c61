"""Quantization of rows to int8: alone, behind ``rms_norm`` and behind ``silu_and_mul``.

Each row is computed once into scratch memory, its greatest magnitude is found, and its
values are rounded; the same for each group of its columns where scales belong to groups. All
of that is elementwise or a maximum, and the norm sums in fixed lanes: a row's bits depend on
the row alone. Values that are not finite get a scale that is not a number, so that what is
computed from them isn't either.
"""

import struct
from typing import Any, Final

import numpy as np
import torch
from numba import types
from numba.core import cgutils

from enginebay.hookspecs.kernel import QuantizedRows

from .cpu_block import Block, Scratch
from .cpu_jit import Task, inlined
from .cpu_lanes import (
    INTS,
    VECTOR,
    WIDTH,
    emitted,
    fma,
    greatest,
    ir,
    lanes,
    maximum,
    splat,
    total,
    where_below,
)
from .cpu_memory import LONG, fetch, floats, longs
from .cpu_pool import Pool
from .cpu_rows import activate_row, norm_row, row_step

GREATEST: Final = np.float32(127.0)
SMALLEST: Final = np.float32(1e-35)
"""Rows below count as zeros: their scale's reciprocal would not be finite."""
ROUND: Final = np.float32(12582912.0)
"""1.5 * 2^23: adding it leaves the rounded integer in the low bits."""
ZERO: Final = np.float32(0.0)
ONE: Final = np.float32(1.0)
ITEM: Final = 16384
"""Elements of an item of work, about 10 us."""

X, X_STEP, WEIGHT, OUT, SCALES, ROWS, SIZE, SHARE, SCRATCH, SCRATCH_STEP, GROUPS = range(11)
FLOATS: Final = 22
"""Place of eps, then the static scale (0: none), in the block read as float32."""
BLOCK = struct.Struct("11qff")


@emitted(lanes, lanes)
def magnitude(builder: Any, x: Any) -> Any:
    """|x|"""
    kind = ir.FunctionType(VECTOR, [VECTOR])
    name = f"llvm.fabs.v{WIDTH}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [x])


@emitted(types.void, types.intp, types.intp, types.intp, lanes)
def put_bytes(builder: Any, address: Any, index: Any, end: Any, shifted: Any) -> None:
    """Write integers -128 .. 127, given as the floats 1.5 * 2^23 + n, as bytes ``index``
    and on; nothing from ``end`` on."""
    byte = ir.IntType(8)
    kind = ir.VectorType(byte, WIDTH)
    values = builder.trunc(builder.bitcast(shifted, INTS), kind)
    left = builder.sub(end, index)
    first = builder.add(address, index)
    with builder.if_else(builder.icmp_signed(">=", left, LONG(WIDTH))) as (whole, part):
        with whole:
            builder.store(values, builder.inttoptr(first, kind.as_pointer()), align=1)
        with part:
            buffer = cgutils.alloca_once(builder, kind)
            builder.store(values, buffer)
            source = builder.bitcast(buffer, byte.as_pointer())
            target = builder.inttoptr(first, byte.as_pointer())
            with cgutils.for_range(builder, left) as loop:
                value = builder.load(builder.gep(source, [loop.index]))
                builder.store(value, builder.gep(target, [loop.index]))


@inlined
def _scale(values: Any, begin: int, end: int) -> Any:
    """Greatest magnitude / 127; 1 for zeros; not a number if any value isn't finite."""
    most, odd = splat(ZERO), splat(ZERO)
    for start in range(begin, end, 16):
        part = fetch(values, start, end)
        most = maximum(magnitude(part), most)
        odd = fma(part, splat(ZERO), odd)  # 0, or not a number
    top = greatest(most) + total(odd)
    return ONE if top < SMALLEST else top / GREATEST


@inlined
def _give(w: Any, arguments: int, row: int, values: Any) -> None:
    """Round a row's values to the output, and note its scales."""
    size, groups = w[SIZE], w[GROUPS]
    static, low, high = floats(arguments)[FLOATS + 1], splat(-GREATEST), splat(GREATEST)
    for group in range(groups):
        begin, end = group * size // groups, (group + 1) * size // groups
        scale = _scale(values, begin, end) if static == ZERO else static
        floats(w[SCALES])[row * groups + group] = scale
        inverse = splat(ONE / scale)
        for start in range(begin, end, 16):
            value = fetch(values, start, end) * inverse
            value = where_below(value, low, low, value)
            value = where_below(high, value, high, value)
            put_bytes(w[OUT] + row * size, start, end, value + splat(ROUND))


def _quantize(arguments: int, item: int, slot: int) -> None:
    w = longs(arguments)
    for row in range(item * w[SHARE], min(w[ROWS], (item + 1) * w[SHARE])):
        _give(w, arguments, row, floats(w[X] + 4 * row * w[X_STEP]))


def _rms_norm_quantize(arguments: int, item: int, slot: int) -> None:
    w = longs(arguments)
    scratch = floats(w[SCRATCH] + slot * w[SCRATCH_STEP])
    weight, eps = floats(w[WEIGHT]), floats(arguments)[FLOATS]
    for row in range(item * w[SHARE], min(w[ROWS], (item + 1) * w[SHARE])):
        norm_row(floats(w[X] + 4 * row * w[X_STEP]), weight, eps, w[SIZE], scratch)
        _give(w, arguments, row, scratch)


def _silu_and_mul_quantize(arguments: int, item: int, slot: int) -> None:
    w = longs(arguments)
    scratch = floats(w[SCRATCH] + slot * w[SCRATCH_STEP])
    for row in range(item * w[SHARE], min(w[ROWS], (item + 1) * w[SHARE])):
        gate = w[X] + 4 * row * w[X_STEP]
        activate_row(floats(gate), floats(gate + 4 * w[SIZE]), w[SIZE], scratch)
        _give(w, arguments, row, scratch)


QUANTIZE = Task(_quantize)
RMS_NORM_QUANTIZE = Task(_rms_norm_quantize)
SILU_AND_MUL_QUANTIZE = Task(_silu_and_mul_quantize)


class Quantizations:
    """The three ops with their argument block. Called from the step thread alone."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._block = Block(13)
        self.scratch = Scratch(pool.threads)

    def quantize(
        self, x: torch.Tensor, scale: torch.Tensor | None, group: int = 0
    ) -> QuantizedRows:
        """int8 rows of x, float32 [T, K]; see the contract."""
        rows, size = x.shape
        step = row_step("x", x, rows, size)
        return self._run(QUANTIZE, x, step, 0, size, group, 0.0, scale, 0.4)

    def rms_norm_quantize(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        scale: torch.Tensor | None,
        group: int = 0,
    ) -> QuantizedRows:
        """``rms_norm``, then ``quantize``: x float32 [T, K], weight float32 [K]."""
        rows, size = x.shape
        step = row_step("x", x, rows, size)
        if weight.dtype is not torch.float32 or weight.shape != (size,) or weight.stride(0) != 1:
            msg = f"weight is {weight.dtype} {list(weight.shape)}; needs torch.float32 [{size}]"
            raise ValueError(msg)
        place = weight.data_ptr()
        return self._run(RMS_NORM_QUANTIZE, x, step, place, size, group, eps, scale, 0.7)

    def silu_and_mul_quantize(
        self, gate_up: torch.Tensor, scale: torch.Tensor | None, group: int = 0
    ) -> QuantizedRows:
        """``silu_and_mul``, then ``quantize``: gate_up float32 [T, 2 I]."""
        rows, both = gate_up.shape
        step = row_step("gate_up", gate_up, rows, both // 2 * 2)
        size = both // 2
        return self._run(SILU_AND_MUL_QUANTIZE, gate_up, step, 0, size, group, 0.0, scale, 1.4)

    def _run(
        self,
        task: Task,
        x: torch.Tensor,
        step: int,
        weight: int,
        size: int,
        group: int,
        eps: float,
        scale: torch.Tensor | None,
        cost: float,
    ) -> QuantizedRows:
        """Run a task over rows; ``cost`` is in nanoseconds an element."""
        rows, groups = x.shape[0], size // group if group else 1
        if group * groups not in (0, size):
            msg = f"group is {group}; it must be 0 or divide the {size} columns"
            raise ValueError(msg)
        values = self.pool.empty((rows, size), torch.int8)
        scales = self.pool.empty((rows, groups))
        share = max(1, ITEM // max(size, 1))
        self.scratch.reserve(4 * size + 64)
        BLOCK.pack_into(
            self._block.data,
            0,
            x.data_ptr(),
            step,
            weight,
            values.data_ptr(),
            scales.data_ptr(),
            rows,
            size,
            share,
            self.scratch.address,
            self.scratch.step,
            groups,
            eps,
            0.0 if scale is None else float(scale),
        )
        self.pool.run(task, self._block, -(-rows // share), int(cost * rows * size))
        return QuantizedRows(values, scales)
