"""The reference kernels' paged KV store: tensors on the device, slots on the host.

In int8 a second tensor has a scale for every vector of the first.
"""

from collections.abc import Sequence

import torch

from enginebay.flow import BlockOp, TokenIds
from enginebay.hookspecs.kernel import KVSpec

from .cache_codes import from_codes, to_codes


class ReferenceStore:
    """Keys and values as [layer, K or V, block, position, head, dim]."""

    def __init__(self, spec: KVSpec, num_blocks: int, device: str) -> None:
        self.spec = spec
        self.dtype: torch.dtype = getattr(torch, spec.dtype)
        shape = (
            spec.num_layers,
            2,
            num_blocks,
            spec.block_size,
            spec.num_kv_heads,
            spec.head_dim,
        )
        kept: torch.dtype = getattr(torch, spec.cache_dtype or spec.dtype)
        self.data = torch.zeros(shape, dtype=kept, device=device)
        self.scales = torch.zeros(shape[:-1] if spec.cache_dtype else (0,), device=device)
        """float32 [layer, K or V, block, position, head] for int8, else empty"""
        self.parts = (self.data, self.scales) if spec.cache_dtype else (self.data,)
        self.host: dict[int, tuple[torch.Tensor, ...]] = {}

    @staticmethod
    def block_bytes(spec: KVSpec) -> int:
        """Bytes of one block over all layers."""
        size: int = getattr(torch, spec.cache_dtype or spec.dtype).itemsize
        vector = spec.head_dim * size + (4 if spec.cache_dtype else 0)
        return spec.num_layers * 2 * spec.block_size * spec.num_kv_heads * vector

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers."""
        return self.block_bytes(self.spec)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The device pool and every host slot in use."""
        return (*self.parts, *(part for slot in self.host.values() for part in slot))

    def layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer by slot, each [blocks * block_size, Hk, D]; views."""
        keys, values = self.data[layer].flatten(1, 2)
        return keys, values

    def put(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Keep k and v, each [T, Hk, D], in ``slots`` (int64 [T]) of a layer."""
        for which, given in enumerate((k, v)):
            kept = to_codes(given) if self.spec.cache_dtype else (given,)
            for part, values in zip(self.parts, kept, strict=True):
                part[layer, which].flatten(0, 1).index_copy_(0, slots, values)

    def take(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of ``slots`` (int64 [n]) of a layer, each [n, Hk, D]."""
        keys, values = (part[slots] for part in self.layer(layer))
        if not self.spec.cache_dtype:
            return keys, values
        of_keys, of_values = (part[slots] for part in self.scales[layer].flatten(1, 2))
        return from_codes(keys, of_keys, self.dtype), from_codes(values, of_values, self.dtype)

    def copy(self, ops: Sequence[BlockOp]) -> None:
        """Copy whole blocks inside the device pool, in order."""
        for op in ops:
            for part in self.parts:
                part[:, :, op.target] = part[:, :, op.source]

    def reserve_host(self, num_slots: int) -> None:
        """Make slots, pinned where the device is another memory."""
        pinned = self.data.device.type != "cpu"
        made = [
            torch.zeros((num_slots, *part[:, :, 0].shape), dtype=part.dtype, pin_memory=pinned)
            for part in self.parts
        ]
        self.host = dict(enumerate(zip(*made, strict=True)))

    def save(self, ops: Sequence[BlockOp]) -> None:
        """Copy device block ``source`` to host slot ``target``, made when it is new."""
        for op in ops:
            blocks = [part[:, :, op.source] for part in self.parts]
            if op.target in self.host:
                for slot, block in zip(self.host[op.target], blocks, strict=True):
                    slot.copy_(block)
            else:
                self.host[op.target] = tuple(block.cpu().clone() for block in blocks)

    def load(self, ops: Sequence[BlockOp]) -> None:
        """Copy host slot ``source`` to device block ``target``; the slot stays filled."""
        for op in ops:
            for part, slot in zip(self.parts, self.host[op.source], strict=True):
                part[:, :, op.target] = slot.to(part.device)

    def export(self, block_ids: TokenIds) -> bytes:
        """The bytes of blocks: layer, block, K then V, [position, head, dim], in int8 with
        the scales, [position, head], after each of the two."""
        rows = []
        for part in self.parts:
            blocks = part[:, :, list(block_ids)].transpose(1, 2).contiguous().cpu()
            rows.append(blocks.flatten(3).view(torch.uint8))  # numpy has no bfloat16
        data: bytes = torch.cat(rows, dim=-1).numpy().tobytes()
        return data

    def import_(self, block_ids: TokenIds, data: bytes) -> None:
        """The reverse of ``export``.

        :raises ValueError: the data is not exactly so many blocks
        """
        expected = len(block_ids) * self.bytes_per_block
        if len(data) != expected:
            msg = (
                f"{len(data)} bytes of KV data for {len(block_ids)} blocks, which take "
                f"{expected}; it comes from a store of another shape, dtype or block count"
            )
            raise ValueError(msg)
        if not block_ids:
            return
        rows = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        rows = rows.view(self.spec.num_layers, len(block_ids), 2, -1)
        widths = [part[0, 0, 0].numel() * part.itemsize for part in self.parts]
        for part, row in zip(self.parts, torch.split(rows, widths, dim=-1), strict=True):
            blocks = row.contiguous().view(part.dtype).view(*row.shape[:3], *part.shape[3:])
            part[:, :, list(block_ids)] = blocks.transpose(1, 2).to(part.device)
