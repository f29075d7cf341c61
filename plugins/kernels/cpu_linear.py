"""Matrix products on the CPU: ``linear`` and ``logits`` over weights in panels.

A job's items are runs of panels; each goes over all rows, 96 at a time, so that a run's
weights are read from memory once and stay in the cache of the core that read them. Bits
depend neither on the items nor on the threads (see ``cpu_products``).
"""

import struct
from typing import Any, Final

import torch

from enginebay.hookspecs.kernel import QuantizedRows
from enginebay.hookspecs.quant import PackedLinear

from .cpu_block import Scratch
from .cpu_jit import Task, inlined
from .cpu_lanes import splat
from .cpu_memory import fetch, floats, load, load_ints, longs, put
from .cpu_panels import (
    ADDS,
    BIAS,
    INNER,
    OUT,
    OUT_STEP,
    OUTER,
    PANELS,
    ROW_SCALES,
    ROWS,
    SCALES,
    SCRATCH,
    SCRATCH_STEP,
    SHARE,
    START,
    STEPS,
    WEIGHTS,
    X_STEP,
    Panels,
    X,
)
from .cpu_pool import Pool
from .cpu_products import (
    COLUMNS,
    GROUP,
    MAX_ROWS,
    ROW_BYTES,
    VECTORS,
    float_tile,
    int_tile,
    prepare_row,
)
from .cpu_rows import expect, row_step

BLOCK_ROWS: Final = 96
"""Rows that are prepared and multiplied together."""
TILE_BYTES: Final = MAX_ROWS * COLUMNS * 4
CALL = struct.Struct("10q")
ITEMS: Final = 4
"""Items a thread at least: what a slow thread leaves behind, others take."""


@inlined
def _finish(
    w: Any, panel: int, row: int, count: int, sums: int, product: Any, scaled: bool
) -> None:
    """Scales, bias and residual of a tile, and its place in the output."""
    width = w[OUTER]
    for r in range(count):
        target = floats(w[OUT] + 4 * (row + r) * w[OUT_STEP])
        for vector in range(VECTORS):
            column = (panel * VECTORS + vector) * 16
            if column >= width:
                break
            place = r * COLUMNS + 16 * vector
            if scaled:
                value = load_ints(sums, place) * load(floats(w[SCALES]), column)
                value = value * splat(floats(w[ROW_SCALES])[row + r])
            else:
                value = load(product, place)
            if w[BIAS] != 0:
                value = value + load(floats(w[BIAS]), column)
            if w[ADDS] != 0:
                value = fetch(target, column, width) + value
            put(target, column, width, value)


def _multiply_ints(arguments: int, item: int, slot: int) -> None:
    """Panels ``item * SHARE`` and on, times every row."""
    w = longs(arguments)
    tile = w[SCRATCH] + slot * w[SCRATCH_STEP]
    rows = tile + TILE_BYTES
    step = w[STEPS] * GROUP * ROW_BYTES
    panel_bytes = w[STEPS] * GROUP * COLUMNS
    for block in range(0, w[ROWS], BLOCK_ROWS):
        count = min(BLOCK_ROWS, w[ROWS] - block)
        for r in range(count):
            source = w[X] + (block + r) * w[X_STEP]
            prepare_row(source, w[INNER], w[STEPS] * GROUP, rows + r * step)
        for panel in range(item * w[SHARE], min(w[PANELS], (item + 1) * w[SHARE])):
            weights, start = w[WEIGHTS] + panel * panel_bytes, w[START] + 4 * panel * COLUMNS
            for r in range(0, count, MAX_ROWS):
                some = min(MAX_ROWS, count - r)
                int_tile(some, rows + r * step, step, weights, w[STEPS], start, tile, 4 * COLUMNS)
                _finish(w, panel, block + r, some, tile, floats(tile), True)


def _multiply_floats(arguments: int, item: int, slot: int) -> None:
    """Panels ``item * SHARE`` and on, times every row."""
    w = longs(arguments)
    tile = w[SCRATCH] + slot * w[SCRATCH_STEP]
    for block in range(0, w[ROWS], BLOCK_ROWS):
        count = min(BLOCK_ROWS, w[ROWS] - block)
        for panel in range(item * w[SHARE], min(w[PANELS], (item + 1) * w[SHARE])):
            weights = w[WEIGHTS] + 4 * panel * w[STEPS] * COLUMNS
            for r in range(0, count, MAX_ROWS):
                some = min(MAX_ROWS, count - r)
                float_tile(
                    some, w[X] + (block + r) * w[X_STEP], w[X_STEP], weights, w[STEPS], tile,
                    4 * COLUMNS,
                )  # fmt: skip
                _finish(w, panel, block + r, some, tile, floats(tile), False)


MULTIPLY_INTS = Task(_multiply_ints)
MULTIPLY_FLOATS = Task(_multiply_floats)


class Products:
    """Both products, with their scratch memory. Called from the step thread alone."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.scratch = Scratch(pool.threads)

    def ints(
        self, x: QuantizedRows, packed: PackedLinear, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """int8 rows times int8 weights, exact in int32, then scaled (scheme ``w8a8``)."""
        layer = _laid_out(packed)
        values, rows = x.values, x.values.shape[0]
        expect("rows", values, torch.int8, (rows, layer.in_features))
        expect("scales", x.scales, torch.float32, (rows, 1))
        self.scratch.reserve(TILE_BYTES + layer.row_bytes * min(rows, BLOCK_ROWS))
        # 64 multiply-adds a nanosecond, or 8 bytes of weights
        work = layer.in_features * layer.out_features * max(rows * 2, 16) // 128
        return self._run(
            MULTIPLY_INTS, layer, rows, values, values.stride(0), x.scales, residual, work
        )

    def floats(
        self, x: torch.Tensor, packed: PackedLinear, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """float32 rows times float32 weights (scheme ``float``)."""
        layer = _laid_out(packed)
        rows = x.shape[0]
        step = 4 * row_step("x", x, rows, layer.in_features)
        self.scratch.reserve(TILE_BYTES)
        work = layer.in_features * layer.out_features * max(rows, 16) // 32
        return self._run(MULTIPLY_FLOATS, layer, rows, x, step, None, residual, work)

    def _run(
        self,
        task: Task,
        layer: Panels,
        rows: int,
        x: torch.Tensor,
        x_step: int,
        row_scales: torch.Tensor | None,
        residual: torch.Tensor | None,
        work: int,
    ) -> torch.Tensor:
        out = residual
        if out is None:
            out = self.pool.empty((rows, layer.out_features))
        out_step = row_step("residual", out, rows, layer.out_features)
        if rows == 0:
            return out
        panels = layer.tensors["weight"].shape[0]
        share = max(1, panels // (ITEMS * self.pool.threads))
        CALL.pack_into(
            layer.block.data,
            8 * ROWS,
            rows,
            x.data_ptr(),
            x_step,
            0 if row_scales is None else row_scales.data_ptr(),
            out.data_ptr(),
            out_step,
            0 if residual is None else 1,
            share,
            self.scratch.address,
            self.scratch.step,
        )
        self.pool.run(task, layer.block, -(-panels // share), work)
        return out


def _laid_out(packed: PackedLinear) -> Panels:
    if not isinstance(packed, Panels):
        msg = f"layer {packed.name!r} was not laid out by this kernel's pack"
        raise TypeError(msg)
    return packed
