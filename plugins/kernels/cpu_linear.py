"""Matrix products on the CPU: ``linear`` and ``logits`` over weights in panels.

A job's items are runs of panels. Bits depend neither on the items nor on the threads (see
``cpu_products``).
"""

import struct
from typing import Final

import torch

from enginebay.hookspecs.kernel import QuantizedRows
from enginebay.hookspecs.quant import PackedLinear

from .cpu_block import Scratch
from .cpu_jit import Task
from .cpu_linear_jobs import (
    BLOCK_ROWS,
    MULTIPLY_FLOATS,
    MULTIPLY_GROUPS,
    MULTIPLY_INTS,
    TILE_BYTES,
)
from .cpu_panels import GROUPS, ROWS, Panels
from .cpu_pool import Pool
from .cpu_rows import expect, row_step

CALL = struct.Struct("10q")
ITEMS: Final = 4
"""Items a thread at least: what a slow thread leaves behind, others take."""


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

    def int_groups(
        self, x: QuantizedRows, packed: PackedLinear, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """int8 rows times int8 weights, exact in each group (scheme ``w8a8-groups``)."""
        layer = _laid_out(packed)
        values, rows = x.values, x.values.shape[0]
        expect("rows", values, torch.int8, (rows, layer.in_features))
        expect("scales", x.scales, torch.float32, (rows, int(layer.block.words[GROUPS])))
        self.scratch.reserve(2 * TILE_BYTES + layer.row_bytes * min(rows, BLOCK_ROWS))
        work = layer.in_features * layer.out_features * max(rows * 2, 16) // 110
        return self._run(
            MULTIPLY_GROUPS, layer, rows, values, values.stride(0), x.scales, residual, work
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
