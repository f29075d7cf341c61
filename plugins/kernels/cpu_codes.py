"""Products with codes on the CPU: the schemes ``int8`` and ``int4``, rows in float32.

A job's items are runs of panels; each goes over all rows, some at a time. Items are
independent and a row's arithmetic is the same wherever it stands (``cpu_codes_tile``), so
neither the number of rows nor the split over threads shows in a bit.
"""

import struct
from typing import Any, Final

import numpy as np
import torch

from enginebay.hookspecs.kernel import Offer, OpSignature
from enginebay.hookspecs.quant import PackedLinear

from .cpu_block import Scratch
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
    ROWS,
    SCALES,
    SCRATCH,
    SCRATCH_STEP,
    SHARE,
    SIZE,
    X_STEP,
    CodePanels,
    X,
    pack_bytes,
    pack_nibbles,
)
from .cpu_codes_tile import COLUMNS, ROW, byte_tile, nibble_tile
from .cpu_features import wide
from .cpu_jit import Task, inlined
from .cpu_lanes import WIDTH, splat, total
from .cpu_memory import fetch, floats, load, longs, put
from .cpu_pool import Pool
from .cpu_products import MAX_ROWS
from .cpu_rows import row_step

BLOCK_ROWS: Final = 48
"""Rows that are multiplied together: with 2,000 columns they fit a second-level cache."""
TILE_BYTES: Final = MAX_ROWS * ROW
CALL = struct.Struct("9q")
NIBBLE_ROWS: Final = MAX_ROWS if wide() else 4
"""Of a tile of 4-bit codes, which need registers beside the sums."""
ITEMS: Final = 4
"""Items a thread at least: what a slow thread leaves behind, others take."""
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
def _finish(w: Any, panel: int, row: int, count: int, tile: int) -> None:
    """Bias and residual of a tile, and its place in the output."""
    width = w[OUTER]
    for r in range(count):
        target = floats(w[OUT] + (row + r) * w[OUT_STEP])
        product = floats(tile + r * ROW)
        begin = panel * COLUMNS
        for column in range(begin, min(begin + COLUMNS, width), WIDTH):
            value = load(product, column - begin)
            if w[BIAS] != 0:
                value = value + load(floats(w[BIAS]), column)
            if w[ADDS] != 0:
                value = fetch(target, column, width) + value
            put(target, column, width, value)


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
                _finish(w, panel, row, count, tile)


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
                _finish(w, panel, row, count, tile)


MULTIPLY_BYTES = Task(_multiply_bytes)
MULTIPLY_NIBBLES = Task(_multiply_nibbles)


class Codes:
    """Both products, with their scratch memory. Called from the step thread alone."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.scratch = Scratch(pool.threads)

    def offers(self) -> tuple[Offer, ...]:
        """Both products as ``linear`` and as ``logits``, which is float32 anyway."""
        return tuple(
            offer
            for op in ("linear", "logits")
            for offer in (
                Offer(op, "int8-codes", self.bytes, True, _supports_bytes, pack=pack_bytes),
                Offer(op, "int4-codes", self.nibbles, True, _supports_nibbles, pack=pack_nibbles),
            )
        )

    def bytes(
        self, x: torch.Tensor, packed: PackedLinear, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """float32 rows times int8 codes with scales (scheme ``int8``)."""
        self.scratch.reserve(TILE_BYTES)
        return self._run(MULTIPLY_BYTES, x, _laid_out(packed), residual, 16)

    def nibbles(
        self, x: torch.Tensor, packed: PackedLinear, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """float32 rows times 4-bit codes with scales and offsets (scheme ``int4``)."""
        layer = _laid_out(packed)
        sums = min(x.shape[0], BLOCK_ROWS) * int(layer.block.words[GROUPS])
        self.scratch.reserve(TILE_BYTES + 4 * sums)
        return self._run(MULTIPLY_NIBBLES, x, layer, residual, 24)

    def _run(
        self,
        task: Task,
        x: torch.Tensor,
        layer: CodePanels,
        residual: torch.Tensor | None,
        pace: int,
    ) -> torch.Tensor:
        """Run a task; ``pace`` is in weights a nanosecond for one row on one thread."""
        rows, outer = x.shape[0], layer.out_features
        x_step = 4 * row_step("x", x, rows, layer.in_features)
        out = self.pool.empty((rows, outer)) if residual is None else residual
        out_step = 4 * row_step("residual", out, rows, outer)
        if rows == 0:
            return out
        work = layer.in_features * outer * (rows + 1) // (2 * pace)
        panels = layer.tensors["weight"].shape[0]
        share = max(1, panels // (ITEMS * self.pool.threads))
        CALL.pack_into(
            layer.block.data,
            8 * ROWS,
            rows,
            x.data_ptr(),
            x_step,
            out.data_ptr(),
            out_step,
            0 if residual is None else 1,
            share,
            self.scratch.address,
            self.scratch.step,
        )
        self.pool.run(task, layer.block, -(-panels // share), work)
        return out


def _laid_out(packed: PackedLinear) -> CodePanels:
    if not isinstance(packed, CodePanels):
        msg = f"layer {packed.name!r} was not laid out by this kernel's pack"
        raise TypeError(msg)
    return packed


def _supports_bytes(signature: OpSignature) -> str | None:
    """Why not, for another dtype, another scheme, or int8 codes with offsets."""
    if signature.scheme == "int8" and "offsets" in signature.features:
        return "runs int8 codes without offsets"
    return _supports("int8", signature)


def _supports_nibbles(signature: OpSignature) -> str | None:
    """Why not, for another dtype or scheme."""
    return _supports("int4", signature)


def _supports(scheme: str, signature: OpSignature) -> str | None:
    if signature.scheme != scheme:
        return f"runs the scheme {scheme!r}, not {signature.scheme!r}"
    if signature.dtype != "float32":
        return f"computes in float32, not {signature.dtype}"
    return None
