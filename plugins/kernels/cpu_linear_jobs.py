"""The jobs of matrix products over panels: what one item computes.

An item is a run of panels; it goes over all rows, 96 at a time, so that a run's weights are
read from memory once and stay in the cache of the core that read them.
"""

from typing import Any, Final

import numpy as np

from .cpu_jit import Task, inlined
from .cpu_lanes import fma, splat
from .cpu_memory import fetch, floats, load, load_ints, longs, put, store
from .cpu_panels import (
    ADDS,
    BIAS,
    GROUPS,
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
    X,
)
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

BLOCK_ROWS: Final = 96
"""Rows that are prepared and multiplied together."""
TILE_BYTES: Final = MAX_ROWS * COLUMNS * 4
ZERO: Final = np.float32(0.0)


@inlined
def settle(target: Any, column: int, width: int, value: Any, bias: int, adds: int) -> None:
    """Sixteen outputs of a row: bias and residual, where there are, and their place.

    :param bias: address of float32, or 0
    :param adds: not 0: ``target`` holds a residual
    """
    if bias != 0:
        value = value + load(floats(bias), column)
    if adds != 0:
        value = fetch(target, column, width) + value
    put(target, column, width, value)


@inlined
def _prepare(w: Any, block: int, count: int, rows: int, step: int) -> None:
    """Rows ``block`` and on as the integer tile reads them, ``step`` bytes apart."""
    for r in range(count):
        source = w[X] + (block + r) * w[X_STEP]
        prepare_row(source, w[INNER], w[STEPS] * GROUP, rows + r * step)


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
            settle(target, column, width, value, w[BIAS], w[ADDS])


def _multiply_ints(arguments: int, item: int, slot: int) -> None:
    """Panels ``item * SHARE`` and on, times every row."""
    w = longs(arguments)
    tile = w[SCRATCH] + slot * w[SCRATCH_STEP]
    rows = tile + TILE_BYTES
    step = w[STEPS] * GROUP * ROW_BYTES
    panel_bytes = w[STEPS] * GROUP * COLUMNS
    for block in range(0, w[ROWS], BLOCK_ROWS):
        count = min(BLOCK_ROWS, w[ROWS] - block)
        _prepare(w, block, count, rows, step)
        for panel in range(item * w[SHARE], min(w[PANELS], (item + 1) * w[SHARE])):
            weights, start = w[WEIGHTS] + panel * panel_bytes, w[START] + 4 * panel * COLUMNS
            for r in range(0, count, MAX_ROWS):
                some = min(MAX_ROWS, count - r)
                int_tile(some, rows + r * step, step, weights, w[STEPS], start, tile, 4 * COLUMNS)
                _finish(w, panel, block + r, some, tile, floats(tile), True)


@inlined
def _add_group(w: Any, panel: int, group: int, row: int, count: int, sums: int, to: int) -> None:
    """Add the sums of a group, scaled, to what the groups before it gave."""
    groups = w[GROUPS]
    scales = floats(w[SCALES] + 4 * (panel * groups + group) * COLUMNS)
    for r in range(count):
        factor = splat(floats(w[ROW_SCALES])[(row + r) * groups + group])
        for lane in range(0, COLUMNS, 16):
            place = r * COLUMNS + lane
            part = load_ints(sums, place) * load(scales, lane)
            before = load(floats(to), place) if group else splat(ZERO)
            store(floats(to), place, fma(part, factor, before))


def _multiply_groups(arguments: int, item: int, slot: int) -> None:
    """Panels ``item * SHARE`` and on, times every row, group by group."""
    w = longs(arguments)
    sums = w[SCRATCH] + slot * w[SCRATCH_STEP]
    tile = sums + TILE_BYTES
    rows = tile + TILE_BYTES
    step = w[STEPS] * GROUP * ROW_BYTES
    steps = w[STEPS] // w[GROUPS]
    for block in range(0, w[ROWS], BLOCK_ROWS):
        count = min(BLOCK_ROWS, w[ROWS] - block)
        _prepare(w, block, count, rows, step)
        for panel in range(item * w[SHARE], min(w[PANELS], (item + 1) * w[SHARE])):
            for r in range(0, count, MAX_ROWS):
                some = min(MAX_ROWS, count - r)
                for group in range(w[GROUPS]):
                    index = panel * w[GROUPS] + group
                    int_tile(
                        some, rows + r * step + group * steps * GROUP * ROW_BYTES, step,
                        w[WEIGHTS] + index * steps * GROUP * COLUMNS, steps,
                        w[START] + 4 * index * COLUMNS, sums, 4 * COLUMNS,
                    )  # fmt: skip
                    _add_group(w, panel, group, block + r, some, sums, tile)
                _finish(w, panel, block + r, some, tile, floats(tile), False)


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
MULTIPLY_GROUPS = Task(_multiply_groups)
MULTIPLY_FLOATS = Task(_multiply_floats)
