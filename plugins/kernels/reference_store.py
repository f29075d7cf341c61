"""The reference kernels' paged KV store: one tensor on the device, slots on the host."""

from collections.abc import Sequence

import torch

from enginebay.flow import BlockOp, TokenIds
from enginebay.hookspecs.kernel import KVSpec


class ReferenceStore:
    """Keys and values as [layer, K or V, block, position, head, dim]."""

    def __init__(self, spec: KVSpec, num_blocks: int, device: str) -> None:
        self.spec = spec
        shape = (
            spec.num_layers,
            2,
            num_blocks,
            spec.block_size,
            spec.num_kv_heads,
            spec.head_dim,
        )
        self.data = torch.zeros(shape, dtype=getattr(torch, spec.dtype), device=device)
        self.host: dict[int, torch.Tensor] = {}

    @staticmethod
    def block_bytes(spec: KVSpec) -> int:
        """Bytes of one block over all layers."""
        size: int = getattr(torch, spec.dtype).itemsize
        return spec.num_layers * 2 * spec.block_size * spec.num_kv_heads * spec.head_dim * size

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers."""
        return self.block_bytes(self.spec)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The device pool and every host slot in use."""
        return (self.data, *self.host.values())

    def layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer by slot, each [blocks * block_size, Hk, D]; views."""
        keys, values = self.data[layer].flatten(1, 2)
        return keys, values

    def copy(self, ops: Sequence[BlockOp]) -> None:
        """Copy whole blocks inside the device pool, in order."""
        for op in ops:
            self.data[:, :, op.target] = self.data[:, :, op.source]

    def reserve_host(self, num_slots: int) -> None:
        """Make slots, pinned where the device is another memory."""
        shape = (num_slots, *self.data[:, :, 0].shape)
        pinned = self.data.device.type != "cpu"
        slots = torch.zeros(shape, dtype=self.data.dtype, pin_memory=pinned)
        self.host = dict(enumerate(slots))

    def save(self, ops: Sequence[BlockOp]) -> None:
        """Copy device block ``source`` to host slot ``target``, made when it is new."""
        for op in ops:
            block = self.data[:, :, op.source]
            if op.target in self.host:
                self.host[op.target].copy_(block)
            else:
                self.host[op.target] = block.cpu().clone()

    def load(self, ops: Sequence[BlockOp]) -> None:
        """Copy host slot ``source`` to device block ``target``; the slot stays filled."""
        for op in ops:
            self.data[:, :, op.target] = self.host[op.source].to(self.data.device)

    def export(self, block_ids: TokenIds) -> bytes:
        """The bytes of blocks: layer, block, K then V, [position, head, dim]."""
        blocks = self.data[:, :, list(block_ids)].transpose(1, 2).contiguous()
        data: bytes = blocks.cpu().view(torch.uint8).numpy().tobytes()  # numpy has no bfloat16
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
        layers, pair, _, *block = self.data.shape
        blocks = torch.frombuffer(bytearray(data), dtype=self.data.dtype)
        blocks = blocks.view(layers, len(block_ids), pair, *block).transpose(1, 2)
        self.data[:, :, list(block_ids)] = blocks.to(self.data.device)
