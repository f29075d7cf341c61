"""Matrix products, fast or the same for a row wherever it stands.

A float GEMM picks its kernel by the number of rows, so a row's bits change between a
batch of 1, of 2 to 15, and of 16 and more. Products over tiles of always 16 rows do
not have that choice: every call has the same shape, and a row's result depends neither
on its place in the tile nor on what the other rows hold. Columns are filled up as well: where
fewer than 12 outputs met an odd number of columns, rows of a tile were summed differently.
"""

import dataclasses

import torch
import torch.nn.functional as F

from enginebay.hookspecs.quant import PackedLinear

ROWS = 16
"""Rows of a tile; the last one is filled up with zeros."""
COLUMNS = 16
"""Columns come in multiples of it."""


def mm(x: torch.Tensor, packed: PackedLinear, residual: torch.Tensor | None = None) -> torch.Tensor:
    """One product over all rows: x [T, K] -> [T, N], bias included."""
    return added(F.linear(x, packed.tensors["weight"], packed.bias), residual)


def tiles(
    x: torch.Tensor, packed: PackedLinear, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """The product tile by tile: x [T, K] -> [T, N], bias included; row-invariant."""
    rows, columns = x.shape
    if rows == 0:
        return mm(x, packed, residual)
    missing = -columns % COLUMNS
    if missing:
        weight = F.pad(packed.tensors["weight"], (0, missing))
        packed = dataclasses.replace(packed, tensors={"weight": weight})
    # A buffer of its own also gives every tile the same alignment, which some BLAS
    # libraries look at when they choose a kernel.
    padded = x.new_zeros((-(-rows // ROWS) * ROWS, columns + missing))
    padded[:rows, :columns] = x
    product = torch.cat([mm(tile, packed) for tile in torch.split(padded, ROWS)])[:rows]
    return added(product, residual)


def mm_logits(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """``mm`` in float32."""
    return mm(x, packed).float()


def tiles_logits(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """``tiles`` in float32."""
    return tiles(x, packed).float()


def added(product: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
    """A product [T, N], or the residual [T, N] with the product added to it in place."""
    return product if residual is None else residual.add_(product)
