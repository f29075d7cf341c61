"""Float logits on the CPU, from weights as they lie: a tied head is not copied.

Lanes run along k: three rows times two outputs at a time, each sum in sixteen chains that
are joined by a fixed tree. An output's bits depend on its row and its weights alone.
"""

import struct
from typing import Any, Final

import numpy as np
import torch

from enginebay.hookspecs.quant import PackedLinear

from .cpu_block import Block
from .cpu_jit import Task, inlined
from .cpu_lanes import fma, splat, total
from .cpu_memory import fetch, floats, longs
from .cpu_pool import Pool
from .cpu_rows import row_step

ZERO: Final = np.float32(0.0)
SHARE: Final = 512
"""Outputs of an item."""
ROWS, X, X_STEP, WEIGHT, WEIGHT_STEP, INNER, OUTER, BIAS, OUT = range(9)
BLOCK = struct.Struct("9q")


@inlined
def _dots(w: Any, row: int, column: int) -> None:
    """Rows ``row`` .. ``row + 2`` times outputs ``column`` and ``column + 1``; places past
    the last are computed again from the last and written with the same value."""
    size, rows, width = w[INNER], w[ROWS], w[OUTER]
    r1, r2 = min(row + 1, rows - 1), min(row + 2, rows - 1)
    other = min(column + 1, width - 1)
    x0, x1 = floats(w[X] + 4 * row * w[X_STEP]), floats(w[X] + 4 * r1 * w[X_STEP])
    x2 = floats(w[X] + 4 * r2 * w[X_STEP])
    w0 = floats(w[WEIGHT] + 4 * column * w[WEIGHT_STEP])
    w1 = floats(w[WEIGHT] + 4 * other * w[WEIGHT_STEP])
    a, b, c = splat(ZERO), splat(ZERO), splat(ZERO)
    d, e, f = splat(ZERO), splat(ZERO), splat(ZERO)
    for start in range(0, size, 16):
        left, right = fetch(w0, start, size), fetch(w1, start, size)
        part = fetch(x0, start, size)
        a, d = fma(part, left, a), fma(part, right, d)
        part = fetch(x1, start, size)
        b, e = fma(part, left, b), fma(part, right, e)
        part = fetch(x2, start, size)
        c, f = fma(part, left, c), fma(part, right, f)
    first, second = ZERO, ZERO
    if w[BIAS] != 0:
        first, second = floats(w[BIAS])[column], floats(w[BIAS])[other]
    out = floats(w[OUT])
    out[row * width + column], out[row * width + other] = total(a) + first, total(d) + second
    out[r1 * width + column], out[r1 * width + other] = total(b) + first, total(e) + second
    out[r2 * width + column], out[r2 * width + other] = total(c) + first, total(f) + second


def _logits(arguments: int, item: int, slot: int) -> None:
    """Outputs ``item * SHARE`` and on, of every row."""
    w = longs(arguments)
    for column in range(item * SHARE, min(w[OUTER], (item + 1) * SHARE), 2):
        for row in range(0, w[ROWS], 3):
            _dots(w, row, column)


LOGITS = Task(_logits)


class Logits:
    """The op with its argument block. Called from the step thread alone."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._block = Block(9)

    def floats(self, x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        """x float32 [T, K] times the weight [N, K], transposed, plus the bias: [T, N]."""
        weight = packed.tensors["weight"]
        rows, inner = x.shape
        out = self.pool.empty((rows, packed.out_features))
        BLOCK.pack_into(
            self._block.data,
            0,
            rows,
            x.data_ptr(),
            row_step("x", x, rows, inner),
            weight.data_ptr(),
            row_step("weight", weight, packed.out_features, inner),
            inner,
            packed.out_features,
            0 if packed.bias is None else packed.bias.data_ptr(),
            out.data_ptr(),
        )
        items = -(-packed.out_features // SHARE) if rows else 0
        work = inner * packed.out_features * max(rows, 8) // 32
        self.pool.run(LOGITS, self._block, items, work)
        return out
