"""The paged keys and values of the CPU kernels.

Keys lie as [layer, block, KV head, panel, dim, position], where a panel is 16 positions
(or the block, when its size is no multiple of 16), so that 16 scores are one vector;
values as [layer, block, KV head, position, dim], so that 16 outputs are. In int8 both
have scales, [layer, block, KV head, position].
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from enginebay.errors import IntegrityError
from enginebay.flow import BlockOp, TokenIds
from enginebay.hookspecs.kernel import KVSpec

OVERREAD = 16
"""Elements that a vector load may read past the last row when sizes are odd."""


@dataclass(frozen=True)
class Plane:
    """One tensor of the pool, and how a block's part of it is ordered in an export."""

    data: torch.Tensor
    """[layer, block, ...]"""
    order: tuple[int, ...]
    """Axes of ``data`` that give [layer, block, position, head, ...], keys' panels and
    their positions being two axes."""

    def rows(self, block_ids: Sequence[int]) -> torch.Tensor:
        """uint8 [layer, block, bytes of keys or values or their scales]."""
        blocks = self.data[:, block_ids].permute(self.order).contiguous()
        return blocks.flatten(2).view(torch.uint8)

    def fill(self, block_ids: Sequence[int], rows: torch.Tensor) -> None:
        """The reverse of ``rows``."""
        shape = [self.data.shape[axis] for axis in self.order]
        shape[1] = len(block_ids)
        blocks = rows.contiguous().view(self.data.dtype).view(shape)
        back = [self.order.index(axis) for axis in range(len(self.order))]
        self.data[:, block_ids] = blocks.permute(back)

    @property
    def width(self) -> int:
        """Bytes of one block in one layer."""
        return self.data[0, 0].numel() * self.data.itemsize


class CpuStore:
    """A pool of blocks, and the blocks saved from it."""

    def __init__(self, spec: KVSpec, num_blocks: int) -> None:
        self.spec = spec
        self.num_blocks = num_blocks
        outer = (spec.num_layers, num_blocks, spec.num_kv_heads)
        size, dims = spec.block_size, spec.head_dim
        panel = panel_size(spec)
        kept = torch.int8 if spec.cache_dtype else torch.float32
        self.keys = _allocate((*outer, size // panel, dims, panel), kept)
        self.values = _allocate((*outer, size, dims), kept)
        self.planes = [Plane(self.keys, (0, 1, 3, 5, 2, 4)), Plane(self.values, (0, 1, 3, 2, 4))]
        if spec.cache_dtype:
            scales = [_allocate((*outer, size), torch.float32) for _ in range(2)]
            of_keys, of_values = (Plane(each, (0, 1, 3, 2)) for each in scales)
            self.planes = [self.planes[0], of_keys, self.planes[1], of_values]
        self.saved: dict[int, tuple[torch.Tensor, ...]] = {}

    @property
    def bytes_per_block(self) -> int:
        """Keys and values of one block over all layers."""
        return bytes_per_block(self.spec)

    def addresses(self, layer: int) -> tuple[int, int, int, int]:
        """Where a layer's keys, values and their scales begin; 0 without scales."""
        places = [plane.data[layer].data_ptr() for plane in self.planes]
        if self.spec.cache_dtype:
            return places[0], places[2], places[1], places[3]
        return places[0], places[1], 0, 0

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The pool, and every saved block."""
        saved = (tensor for slot in self.saved.values() for tensor in slot)
        return (*(plane.data for plane in self.planes), *saved)

    def copy(self, ops: Sequence[BlockOp]) -> None:
        """Copy whole blocks inside the pool, in order."""
        for op in ops:
            self._check(op.source, op.target)
            for plane in self.planes:
                plane.data[:, op.target] = plane.data[:, op.source]

    def reserve_host(self, num_slots: int) -> None:
        """Make slots ``0 .. num_slots - 1``."""
        made = [
            torch.zeros((num_slots, *plane.data[:, 0].shape), dtype=plane.data.dtype)
            for plane in self.planes
        ]
        self.saved = dict(enumerate(zip(*made, strict=True)))

    def save(self, ops: Sequence[BlockOp]) -> None:
        """Copy pool block ``source`` to host slot ``target``, made when it is new."""
        for op in ops:
            self._check(op.source)
            blocks = [plane.data[:, op.source] for plane in self.planes]
            if op.target in self.saved:
                for slot, block in zip(self.saved[op.target], blocks, strict=True):
                    slot.copy_(block)
            else:
                self.saved[op.target] = tuple(block.clone() for block in blocks)

    def load(self, ops: Sequence[BlockOp]) -> None:
        """Copy host slot ``source`` to pool block ``target``.

        :raises IntegrityError: nothing was saved there
        """
        for op in ops:
            self._check(op.target)
            if op.source not in self.saved:
                msg = f"KV load: host slot {op.source} was never saved"
                raise IntegrityError(msg)
            for plane, slot in zip(self.planes, self.saved[op.source], strict=True):
                plane.data[:, op.target] = slot

    def export(self, block_ids: TokenIds) -> bytes:
        """Bytes of blocks: layer, block, keys then values, [position, head, dim], in int8
        each with its scales, [position, head], after it."""
        self._check(*block_ids)
        rows = [plane.rows(list(block_ids)) for plane in self.planes]
        data: bytes = torch.cat(rows, dim=-1).numpy().tobytes()
        return data

    def import_(self, block_ids: TokenIds, data: bytes) -> None:
        """The reverse of ``export``.

        :raises ValueError: ``data`` is not exactly so many blocks long
        """
        self._check(*block_ids)
        expected = len(block_ids) * self.bytes_per_block
        if len(data) != expected:
            msg = (
                f"KV import: {len(data)} bytes for {len(block_ids)} blocks, "
                f"which take {expected}; export and import with the same KV spec"
            )
            raise ValueError(msg)
        if not block_ids:
            return
        both = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        rows = both.view(self.spec.num_layers, len(block_ids), -1)
        widths = [plane.width for plane in self.planes]
        for plane, row in zip(self.planes, torch.split(rows, widths, dim=-1), strict=True):
            plane.fill(list(block_ids), row)

    def _check(self, *block_ids: int) -> None:
        for block_id in block_ids:
            if not 0 <= block_id < self.num_blocks:
                msg = f"KV block {block_id} is outside the pool of {self.num_blocks} blocks"
                raise IntegrityError(msg)


def _allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    size = 1
    for extent in shape:
        size *= extent
    extra = 0 if shape[-1] % 16 == 0 else OVERREAD
    return torch.zeros(size + extra, dtype=dtype)[:size].view(shape)


def panel_size(spec: KVSpec) -> int:
    """Positions of a key panel."""
    return 16 if spec.block_size % 16 == 0 else spec.block_size


def bytes_per_block(spec: KVSpec) -> int:
    """Bytes of one block's keys and values over all layers, and of their scales in int8."""
    vector = spec.head_dim + 4 if spec.cache_dtype else 4 * spec.head_dim
    return 2 * spec.num_layers * spec.num_kv_heads * spec.block_size * vector
