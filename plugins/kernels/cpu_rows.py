"""The elementwise ops of the CPU plugin: ``rms_norm`` and ``silu_and_mul``.

Both read rows that may lie apart (views of a wider tensor) and return a new contiguous
tensor. A row's bits depend on the row alone: the mean of squares is summed in 64 fixed
lanes, whatever the number of rows.
"""

import struct
from typing import Any

import numpy as np
import torch

from .cpu_block import Block
from .cpu_exp import sigmoid
from .cpu_jit import Task, inlined
from .cpu_lanes import fma, splat, total
from .cpu_memory import fetch, floats, load, longs, put
from .cpu_pool import Pool

ITEM = 16384
"""Elements of an item of work, about 10 us."""
ZERO = np.float32(0.0)
ONE = np.float32(1.0)

# argument block: x, x step, weight, out, rows, size, rows an item, eps
BLOCK = struct.Struct("7qf4x")


@inlined
def norm_row(x: Any, weight: Any, eps: Any, size: int, out: Any) -> None:
    """x / sqrt(mean(x^2) + eps) * weight of one row."""
    a, b, c, d = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    whole = size // 64 * 64
    for start in range(0, whole, 64):
        a = fma(load(x, start), load(x, start), a)
        b = fma(load(x, start + 16), load(x, start + 16), b)
        c = fma(load(x, start + 32), load(x, start + 32), c)
        d = fma(load(x, start + 48), load(x, start + 48), d)
    for start in range(whole, size, 16):
        part = fetch(x, start, size)
        a = fma(part, part, a)
    mean = total((a + b) + (c + d)) / np.float32(size)
    factor = splat(ONE / np.sqrt(mean + eps))
    for start in range(0, size, 16):
        value = fetch(x, start, size) * factor * fetch(weight, start, size)
        put(out, start, size, value)


@inlined
def activate_row(gate: Any, up: Any, size: int, out: Any) -> None:
    """silu(gate) * up of one row."""
    for start in range(0, size, 16):
        x = fetch(gate, start, size)
        put(out, start, size, x * sigmoid(x) * fetch(up, start, size))


def _rms_norm(arguments: int, item: int, slot: int) -> None:
    w = longs(arguments)
    size = w[5]
    eps = floats(arguments)[14]
    weight = floats(w[2])
    for row in range(item * w[6], min(w[4], (item + 1) * w[6])):
        x = floats(w[0] + 4 * row * w[1])
        norm_row(x, weight, eps, size, floats(w[3] + 4 * row * size))


def _silu_and_mul(arguments: int, item: int, slot: int) -> None:
    w = longs(arguments)
    size = w[5]
    for row in range(item * w[6], min(w[4], (item + 1) * w[6])):
        gate = w[0] + 4 * row * w[1]
        up = floats(gate + 4 * size)
        activate_row(floats(gate), up, size, floats(w[3] + 4 * row * size))


RMS_NORM = Task(_rms_norm)
SILU_AND_MUL = Task(_silu_and_mul)


def row_step(name: str, x: torch.Tensor, rows: int, columns: int) -> int:
    """Elements between the rows of a float32 [rows, columns] tensor.

    :raises ValueError: another type or shape, or a row that is not contiguous
    """
    if x.dtype is torch.float32 and x.shape == (rows, columns):
        if x.is_contiguous():
            return columns
        if x.stride(1) == 1:
            return x.stride(0)
    msg = (
        f"{name} is {x.dtype} {list(x.shape)} with strides {list(x.stride())}; the cpu kernel "
        f"needs torch.float32 [{rows}, {columns}] with adjacent columns"
    )
    raise ValueError(msg)


def expect(name: str, x: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """:raises ValueError: another type or shape, or not contiguous"""
    if x.dtype is not dtype or x.shape != shape or not x.is_contiguous():
        msg = f"{name} is {x.dtype} {list(x.shape)}; needs {dtype} {list(shape)}, contiguous"
        raise ValueError(msg)


class RowOps:
    """The two ops with their argument block. Called from the step thread alone."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._block = Block(8)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, arXiv 1910.07467).

        :param x: float32 [R, N]
        :param weight: float32 [N]
        """
        rows, size = x.shape
        step = row_step("x", x, rows, size)
        if weight.dtype is not torch.float32 or weight.shape != (size,) or weight.stride(0) != 1:
            msg = f"weight is {weight.dtype} {list(weight.shape)}; needs torch.float32 [{size}]"
            raise ValueError(msg)
        out = self.pool.empty((rows, size))
        self._run(RMS_NORM, x, step, weight, out, eps, 0.3)
        return out

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(first half) * second half (Shazeer, arXiv 2002.05202).

        :param gate_up: float32 [T, 2 I]
        :return: float32 [T, I]
        """
        rows, both = gate_up.shape
        step = row_step("gate_up", gate_up, rows, both // 2 * 2)
        out = self.pool.empty((rows, both // 2))
        self._run(SILU_AND_MUL, gate_up, step, gate_up, out, 0.0, 1.0)
        return out

    def _run(
        self,
        task: Task,
        x: torch.Tensor,
        step: int,
        weight: torch.Tensor,
        out: torch.Tensor,
        eps: float,
        cost: float,
    ) -> None:
        """Run a task over rows; ``cost`` is in nanoseconds an output element."""
        rows, size = out.shape
        share = max(1, ITEM // max(size, 1))
        BLOCK.pack_into(
            self._block.data,
            0,
            x.data_ptr(),
            step,
            weight.data_ptr(),
            out.data_ptr(),
            rows,
            size,
            share,
            eps,
        )
        self.pool.run(task, self._block, -(-rows // share), int(cost * rows * size))
