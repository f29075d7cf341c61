"""The paged keys and values of the CPU kernels.

Keys lie as [layer, block, KV head, dim, position], so that 16 scores are one vector;
values as [layer, block, KV head, position, dim], so that 16 outputs are.
"""

from collections.abc import Sequence

import torch

from enginebay.errors import IntegrityError
from enginebay.flow import BlockOp, TokenIds
from enginebay.hookspecs.kernel import KVSpec

OVERREAD = 16
"""Floats that a vector load may read past the last row when sizes are odd."""


class CpuStore:
    """A pool of float32 blocks, and the blocks saved from it."""

    def __init__(self, spec: KVSpec, num_blocks: int) -> None:
        self.spec = spec
        self.num_blocks = num_blocks
        outer = (spec.num_layers, num_blocks, spec.num_kv_heads)
        self.keys = self._allocate((*outer, spec.head_dim, spec.block_size))
        self.values = self._allocate((*outer, spec.block_size, spec.head_dim))
        self.saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def _allocate(self, shape: tuple[int, ...]) -> torch.Tensor:
        size = 1
        for extent in shape:
            size *= extent
        extra = 0 if shape[-1] % 16 == 0 else OVERREAD
        return torch.zeros(size + extra)[:size].view(shape)

    @property
    def bytes_per_block(self) -> int:
        """Keys and values of one block over all layers."""
        return bytes_per_block(self.spec)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The pool, and every saved block."""
        saved = (tensor for pair in self.saved.values() for tensor in pair)
        return (self.keys, self.values, *saved)

    def copy(self, ops: Sequence[BlockOp]) -> None:
        """Copy whole blocks inside the pool, in order."""
        for op in ops:
            self._check(op.source, op.target)
            self.keys[:, op.target] = self.keys[:, op.source]
            self.values[:, op.target] = self.values[:, op.source]

    def reserve_host(self, num_slots: int) -> None:
        """Make slots ``0 .. num_slots - 1``."""
        keys = torch.zeros((num_slots, *self.keys[:, 0].shape))
        values = torch.zeros((num_slots, *self.values[:, 0].shape))
        self.saved = dict(enumerate(zip(keys, values, strict=True)))

    def save(self, ops: Sequence[BlockOp]) -> None:
        """Copy pool block ``source`` to host slot ``target``, made when it is new."""
        for op in ops:
            self._check(op.source)
            keys, values = self.keys[:, op.source], self.values[:, op.source]
            if op.target in self.saved:
                self.saved[op.target][0].copy_(keys)
                self.saved[op.target][1].copy_(values)
            else:
                self.saved[op.target] = (keys.clone(), values.clone())

    def load(self, ops: Sequence[BlockOp]) -> None:
        """Copy host slot ``source`` to pool block ``target``.

        :raises IntegrityError: nothing was saved there
        """
        for op in ops:
            self._check(op.target)
            if op.source not in self.saved:
                msg = f"KV load: host slot {op.source} was never saved"
                raise IntegrityError(msg)
            self.keys[:, op.target], self.values[:, op.target] = self.saved[op.source]

    def export(self, block_ids: TokenIds) -> bytes:
        """Float32 bytes of blocks: layer, block, keys then values, [position, head, dim]."""
        self._check(*block_ids)
        ids = list(block_ids)
        keys = self.keys[:, ids].permute(0, 1, 4, 2, 3)
        values = self.values[:, ids].permute(0, 1, 3, 2, 4)
        return torch.stack((keys, values), dim=2).numpy().tobytes()

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
        spec, ids = self.spec, list(block_ids)
        shape = (spec.num_layers, len(ids), 2, spec.block_size, spec.num_kv_heads, spec.head_dim)
        both = torch.frombuffer(bytearray(data), dtype=torch.float32).view(shape)
        self.keys[:, ids] = both[:, :, 0].permute(0, 1, 3, 4, 2)
        self.values[:, ids] = both[:, :, 1].permute(0, 1, 3, 2, 4)

    def _check(self, *block_ids: int) -> None:
        for block_id in block_ids:
            if not 0 <= block_id < self.num_blocks:
                msg = f"KV block {block_id} is outside the pool of {self.num_blocks} blocks"
                raise IntegrityError(msg)


def bytes_per_block(spec: KVSpec) -> int:
    """Float32 bytes of one block's keys and values over all layers."""
    floats = spec.num_layers * spec.num_kv_heads * spec.head_dim * spec.block_size
    return 2 * 4 * floats
