"""The jobs of products with codes: what one item computes, for each of the three kinds."""

from typing import Any, Final

import numpy as np

from .cpu_codes_panels import (
    ADDS,
    BIAS,
    CODES,
    GROUPS,
    OFFSETS,
    OUT,
    OUT_STEP,
    OUTER,
    PANEL_BYTES,
    PANELS,
    ROW_SCALES,
    ROWS,
    SCALES,
    SCRATCH,
    SCRATCH_STEP,
    SHARE,
    SIZE,
    X_STEP,
    X,
)
from .cpu_codes_tile import COLUMNS, ROW, byte_tile, nibble_tile
from .cpu_features import wide
from .cpu_jit import Task, inlined
from .cpu_lanes import WIDTH, splat, total
from .cpu_linear_jobs import settle
from .cpu_memory import fetch, floats, load, longs
from .cpu_products import COLUMNS as QUAD_COLUMNS
from .cpu_products import MAX_ROWS
from .cpu_w4a8_tile import sum_bytes, w4a8_tile

BLOCK_ROWS: Final = 48
"""Rows that are multiplied together: with 2,000 columns they fit a second-level cache."""
TILE_BYTES: Final = MAX_ROWS * ROW
NIBBLE_ROWS: Final = MAX_ROWS if wide() else 4
"""Of a tile of 4-bit codes, which need registers beside the sums."""
ZERO = np.float32(0.0)


@inlined
def _sum_groups(w: Any, row: int, count: int, sums: int) -> None:
    """sums[r, g] = the sum of row ``row + r`` of x over group g, in 16 lanes."""
    size, groups = w[SIZE], w[GROUPS]
    for r in range(count):
        x = floats(w[X] + (row + r) * w[X_STEP])
        out = floats(sums + 4 * r * groups)
        for group in range(groups):
            begin, end = group * size, (group + 1) * size
            lanes = splat(ZERO)
            for column in range(begin, end, WIDTH):
                lanes = lanes + fetch(x, column, end)
            out[group] = total(lanes)


@inlined
def _sum_values(w: Any, row: int, count: int, sums: int) -> None:
    """sums[r, g] = the sum of int8 row ``row + r`` of x over group g, times its scale."""
    size, groups = w[SIZE], w[GROUPS]
    scales = floats(w[ROW_SCALES] + 4 * row * groups)
    for r in range(count):
        x = w[X] + (row + r) * w[X_STEP]
        for group in range(groups):
            place = r * groups + group
            floats(sums)[place] = sum_bytes(x + group * size, size) * scales[place]


@inlined
def _finish(w: Any, panel: int, columns: int, row: int, count: int, tile: int) -> None:
    """Bias and residual of a tile, and its place in the output."""
    width = w[OUTER]
    for r in range(count):
        target = floats(w[OUT] + (row + r) * w[OUT_STEP])
        product = floats(tile + r * 4 * columns)
        begin = panel * columns
        for column in range(begin, min(begin + columns, width), WIDTH):
            value = load(product, column - begin)
            settle(target, column, width, value, w[BIAS], w[ADDS])


def _multiply_bytes(arguments: int, item: int, slot: int) -> None:
    """Panels ``item * SHARE`` and on, times every row."""
    w = longs(arguments)
    tile = w[SCRATCH] + slot * w[SCRATCH_STEP]
    for block in range(0, w[ROWS], BLOCK_ROWS):
        end = min(w[ROWS], block + BLOCK_ROWS)
        for panel in range(item * w[SHARE], min(w[PANELS], (item + 1) * w[SHARE])):
            codes = w[CODES] + panel * w[PANEL_BYTES]
            scales = w[SCALES] + panel * w[GROUPS] * ROW
            for row in range(block, end, MAX_ROWS):
                count = min(MAX_ROWS, end - row)
                x = w[X] + row * w[X_STEP]
                byte_tile(count, x, w[X_STEP], codes, w[SIZE], w[GROUPS], scales, tile)
                _finish(w, panel, COLUMNS, row, count, tile)


def _multiply_nibbles(arguments: int, item: int, slot: int) -> None:
    """Panels ``item * SHARE`` and on, times every row."""
    w = longs(arguments)
    tile = w[SCRATCH] + slot * w[SCRATCH_STEP]
    sums = tile + TILE_BYTES
    for block in range(0, w[ROWS], BLOCK_ROWS):
        end = min(w[ROWS], block + BLOCK_ROWS)
        _sum_groups(w, block, end - block, sums)
        for panel in range(item * w[SHARE], min(w[PANELS], (item + 1) * w[SHARE])):
            codes = w[CODES] + panel * w[PANEL_BYTES]
            shared = panel * w[GROUPS] * ROW
            for row in range(block, end, NIBBLE_ROWS):
                count = min(NIBBLE_ROWS, end - row)
                nibble_tile(
                    count, w[X] + row * w[X_STEP], w[X_STEP], codes, w[SIZE], w[GROUPS],
                    w[SCALES] + shared, w[OFFSETS] + shared,
                    sums + 4 * (row - block) * w[GROUPS], tile,
                )  # fmt: skip
                _finish(w, panel, COLUMNS, row, count, tile)


def _multiply_quads(arguments: int, item: int, slot: int) -> None:
    """Panels ``item * SHARE`` and on, times every row."""
    w = longs(arguments)
    tile = w[SCRATCH] + slot * w[SCRATCH_STEP]
    sums = tile + TILE_BYTES
    for block in range(0, w[ROWS], BLOCK_ROWS):
        end = min(w[ROWS], block + BLOCK_ROWS)
        _sum_values(w, block, end - block, sums)
        for panel in range(item * w[SHARE], min(w[PANELS], (item + 1) * w[SHARE])):
            codes = w[CODES] + panel * w[PANEL_BYTES]
            shared = panel * w[GROUPS] * 4 * QUAD_COLUMNS
            for row in range(block, end, NIBBLE_ROWS):
                count = min(NIBBLE_ROWS, end - row)
                w4a8_tile(
                    count, w[X] + row * w[X_STEP], w[X_STEP], codes, w[SIZE], w[GROUPS],
                    w[SCALES] + shared, w[OFFSETS] + shared,
                    w[ROW_SCALES] + 4 * row * w[GROUPS],
                    sums + 4 * (row - block) * w[GROUPS], tile,
                )  # fmt: skip
                _finish(w, panel, QUAD_COLUMNS, row, count, tile)


MULTIPLY_BYTES = Task(_multiply_bytes)
MULTIPLY_QUADS = Task(_multiply_quads)
MULTIPLY_NIBBLES = Task(_multiply_nibbles)
