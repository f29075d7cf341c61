"""Products with codes on the CPU: ``int8`` and ``int4`` under rows in float32, ``w4a8``.

A job's items are runs of panels; each goes over all rows, some at a time. Items are
independent and a row's arithmetic is the same wherever it stands (``cpu_codes_tile``,
``cpu_w4a8_tile``), so neither the number of rows nor the split over threads shows in a bit.
"""

import struct
from typing import Final

import torch

from enginebay.hookspecs.kernel import Offer, QuantizedRows
from enginebay.hookspecs.quant import PackedLinear

from .cpu_block import Scratch
from .cpu_codes_jobs import (
    BLOCK_ROWS,
    MULTIPLY_BYTES,
    MULTIPLY_NIBBLES,
    MULTIPLY_QUADS,
    TILE_BYTES,
)
from .cpu_codes_panels import GROUPS, ROWS, CodePanels, pack_bytes, pack_nibbles, pack_quads
from .cpu_declines import groups_only, scheme_only, without_offsets
from .cpu_jit import Task
from .cpu_pool import Pool
from .cpu_rows import expect, row_step
from .cpu_w4a8_tile import STEP

CALL = struct.Struct("10q")
ITEMS: Final = 4
"""Items a thread at least: what a slow thread leaves behind, others take."""


class Codes:
    """Both products, with their scratch memory. Called from the step thread alone."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.scratch = Scratch(pool.threads)

    def offers(self) -> tuple[Offer, ...]:
        """Both products as ``linear`` and as ``logits``, which is float32 anyway."""
        whole, nibbles = without_offsets("int8"), scheme_only("int4")
        quads = groups_only(scheme_only("w4a8"), STEP)
        return tuple(
            offer
            for op in ("linear", "logits")
            for offer in (
                Offer(op, "int8-codes", self.bytes, True, whole, pack=pack_bytes),
                Offer(op, "int4-codes", self.nibbles, True, nibbles, pack=pack_nibbles),
                Offer(op, "w4a8-panels", self.quads, True, quads, pack=pack_quads),
            )
        )

    def bytes(
        self, x: torch.Tensor, packed: PackedLinear, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """float32 rows times int8 codes with scales (scheme ``int8``)."""
        layer = _laid_out(packed)
        self.scratch.reserve(TILE_BYTES)
        x_step = 4 * row_step("x", x, x.shape[0], layer.in_features)
        return self._run(MULTIPLY_BYTES, x, x_step, None, layer, residual, 16)

    def nibbles(
        self, x: torch.Tensor, packed: PackedLinear, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """float32 rows times 4-bit codes with scales and offsets (scheme ``int4``)."""
        layer = _laid_out(packed)
        sums = min(x.shape[0], BLOCK_ROWS) * int(layer.block.words[GROUPS])
        self.scratch.reserve(TILE_BYTES + 4 * sums)
        x_step = 4 * row_step("x", x, x.shape[0], layer.in_features)
        return self._run(MULTIPLY_NIBBLES, x, x_step, None, layer, residual, 24)

    def quads(
        self, x: QuantizedRows, packed: PackedLinear, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """int8 rows times 4-bit codes, both with scales of groups (scheme ``w4a8``)."""
        layer = _laid_out(packed)
        groups, shape = int(layer.block.words[GROUPS]), (x.values.shape[0], layer.in_features)
        expect("rows", x.values, torch.int8, shape)
        expect("scales", x.scales, torch.float32, (shape[0], groups))
        self.scratch.reserve(TILE_BYTES + 4 * min(shape[0], BLOCK_ROWS) * groups)
        return self._run(MULTIPLY_QUADS, x.values, shape[1], x.scales, layer, residual, 40)

    def _run(
        self,
        task: Task,
        x: torch.Tensor,
        x_step: int,
        row_scales: torch.Tensor | None,
        layer: CodePanels,
        residual: torch.Tensor | None,
        pace: int,
    ) -> torch.Tensor:
        """Run a task.

        :param x_step: bytes from row to row
        :param pace: weights a nanosecond, for one row on one thread
        """
        rows, outer = x.shape[0], layer.out_features
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
            0 if row_scales is None else row_scales.data_ptr(),
        )
        self.pool.run(task, layer.block, -(-panels // share), work)
        return out


def _laid_out(packed: PackedLinear) -> CodePanels:
    if not isinstance(packed, CodePanels):
        msg = f"layer {packed.name!r} was not laid out by this kernel's pack"
        raise TypeError(msg)
    return packed
