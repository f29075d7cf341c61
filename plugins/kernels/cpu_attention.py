"""Paged attention on the CPU: the ``attention`` op of the plugin.

Buffers: the argument block, the list of pieces, the parts of long contexts and the
scratch memory live as long as the object; pieces and parts grow by doubling. The output
of ``attend`` is a new tensor.
"""

import struct
from typing import Any

import numpy as np
import torch

from enginebay.batch import Batch
from enginebay.errors import IntegrityError, PluginError
from enginebay.hookspecs.kernel import KVSpec

from .cpu_attend import ATTEND, rows_bytes, tile_bytes
from .cpu_block import Block
from .cpu_plan import DIVIDE, MEASURE
from .cpu_pool import Pool
from .cpu_rows import row_step
from .cpu_store import CpuStore, bytes_per_block, panel_size
from .cpu_words import CONTEXTS, GROUP, ITEMS, NUM_WORDS, PIECE_WORDS, PIECES, QUERIES, SCRATCH
from .cpu_write import ROWS_AN_ITEM, WRITE

PIECE_HEADS = 48
"""Query rows times heads of a piece: enough to share a tile, few enough to split."""

SIZES = struct.Struct("8q2f")
STEP = struct.Struct("7q")
ATTEND_CALL = struct.Struct("7q")
WRITE_CALL = struct.Struct("14q")
SHARE = 4
"""A piece whose one KV head takes more than 1 / (4 threads) of a step goes in parts."""


class CpuAttention:
    """Attention and its KV store. Called from the step thread alone."""

    def __init__(self, spec: KVSpec, pool: Pool) -> None:
        if spec.dtype != "float32" or spec.cache_dtype not in ("", "int8"):
            told = f"dtype = {spec.dtype!r}, cache_dtype = {spec.cache_dtype!r}"
            msg = f"kernel 'cpu': {told} for the KV cache; it computes in float32 only, and "
            raise PluginError(msg + "keeps float32 or int8")
        if spec.num_heads % spec.num_kv_heads:
            told = f"{spec.num_heads} query heads do not divide by {spec.num_kv_heads} KV heads"
            raise PluginError(f"kernel 'cpu': {told}")
        self.spec = spec
        self.pool = pool
        self.bytes_per_block = bytes_per_block(spec)
        self._group = spec.num_heads // spec.num_kv_heads
        self._piece_rows = max(1, PIECE_HEADS // self._group)
        self._attend_block = Block(NUM_WORDS, (CONTEXTS, QUERIES), ITEMS)
        self._words, self._address = self._attend_block.words, self._attend_block.address
        self._write_block = Block(NUM_WORDS, (CONTEXTS, QUERIES), words=self._words)
        self._block = self._words.data
        self._pieces = np.zeros(PIECE_WORDS * 64, dtype=np.int64)
        self._counters = np.zeros(0, dtype=np.int64)
        self._partials = np.zeros(0, dtype=np.float32)
        self._batch: Batch | None = None
        """Held because the argument block points into its tensors."""
        self._num_rows = 0
        self._steps: dict[tuple[Any, ...], int] = {}
        """What ``_step`` has found good in this step."""
        self._layers: dict[int, tuple[int, int, int, int]] = {}
        self._store: CpuStore | None = None

    @property
    def store(self) -> CpuStore:
        """The keys and values; available after ``allocate``."""
        if self._store is None:
            raise RuntimeError("the KV store is not there yet: call allocate(num_blocks) first")
        return self._store

    def allocate(self, num_blocks: int) -> None:
        """Make the pool of blocks and each thread's scratch memory, and compile all code."""
        spec = self.spec
        self._store = CpuStore(spec, num_blocks)
        self._layers = {n: self._store.addresses(n) for n in range(spec.num_layers)}
        padded = -(-spec.head_dim // 16) * 16
        rows, tile = self._piece_rows * self._group, tile_bytes(spec.head_dim, padded)
        step = tile + rows_bytes(rows, spec.head_dim, padded)
        self._scratch = np.zeros(self.pool.threads * step, dtype=np.uint8)
        cap = spec.soft_cap or 0.0
        SIZES.pack_into(
            self._block,
            8 * GROUP,
            self._group,
            spec.num_kv_heads,
            spec.head_dim,
            padded,
            spec.block_size,
            spec.sliding_window or 0,
            1 if spec.cache_dtype else 4,
            panel_size(spec),
            spec.scale / (cap or 1.0),
            cap,
        )
        self._words[SCRATCH : SCRATCH + 4] = (self._scratch.ctypes.data, step, rows, tile)
        self._part_floats = spec.num_kv_heads * rows * (2 + padded)
        self.pool.warm_up()
        for entry in (MEASURE, DIVIDE):
            entry.compile()
        for task in (WRITE, ATTEND):
            task.compile()

    def buffers(self) -> tuple[torch.Tensor | np.ndarray[Any, Any], ...]:
        """Argument block, pieces and parts, scratch, and the step's batch while it is held."""
        held = () if self._batch is None else self._batch.tensors()
        own = (self._words, self._pieces, self._counters, self._partials, self._scratch)
        return (*own, *held)

    def prepare(self, batch: Batch) -> None:
        """Check a step's tables and slots and cut it into pieces of work.

        :raises IntegrityError: a block id, slot or context that does not fit the pool
        """
        if batch is not self._batch:
            self._take(batch)
        self._steps.clear()
        sequences, width = batch.tables.shape
        pieces, seen = MEASURE.call(
            self._address, sequences, width, self.store.num_blocks, self._piece_rows
        )
        if pieces < 0:
            msg = f"sequence {seen} of the batch: its rows, context, block table and slots do not "
            msg += f"fit each other or the pool of {self.store.num_blocks} blocks"
            raise IntegrityError(msg)
        self._divide(sequences, seen, seen // max(pieces, 1))
        work = seen * self.spec.num_heads * self.spec.head_dim // 10
        self._items = self._num_pieces * self.spec.num_kv_heads, work
        self._block[ITEMS], self._block[ITEMS + 1] = self._items

    def _take(self, batch: Batch) -> None:
        """Point the argument block at a batch, whose numbers may change from step to step."""
        if batch.block_size != self.spec.block_size:
            msg = f"batch.block_size is {batch.block_size}, the store's {self.spec.block_size}"
            raise IntegrityError(msg)
        self._batch, self._num_rows = batch, batch.num_tokens
        STEP.pack_into(
            self._block,
            8 * CONTEXTS,
            batch.contexts.data_ptr(),
            batch.row_starts.data_ptr(),
            batch.tables.data_ptr(),
            batch.tables.stride(0),
            batch.slots.data_ptr(),
            batch.num_tokens,
            self._pieces.ctypes.data,
        )

    def _divide(self, sequences: int, seen: int, mean: int) -> None:
        """List a step's pieces, in parts where few of them would leave threads idle."""
        threads, heads = self.pool.threads, self.spec.num_kv_heads
        most = seen * heads // (SHARE * threads) if threads > 1 else seen
        asked = (self._address, sequences, self._piece_rows, most, mean)
        self._num_pieces, parts = DIVIDE.call(*asked, len(self._pieces) // PIECE_WORDS)
        if self._num_pieces * PIECE_WORDS <= len(self._pieces) and (
            parts * heads <= len(self._counters)
        ):
            return
        if self._num_pieces * PIECE_WORDS > len(self._pieces):
            self._pieces = np.zeros(2 * PIECE_WORDS * self._num_pieces, dtype=np.int64)
        if parts * heads > len(self._counters):
            self._counters = np.zeros(2 * parts * heads, dtype=np.int64)
            self._partials = np.zeros(2 * parts * self._part_floats, dtype=np.float32)
        made = (self._pieces, self._partials, self._counters)
        self._words[PIECES : PIECES + 3] = [each.ctypes.data for each in made]
        DIVIDE.call(*asked, len(self._pieces) // PIECE_WORDS)

    def write(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cos_sin: torch.Tensor,
    ) -> None:
        """Rotate q and k in place, and put k and v in the cache; see the contract."""
        spec, rows = self.spec, q.shape[0]
        rotary = cos_sin.shape[1]
        if rotary > spec.head_dim or rotary % 2:
            msg = f"cos_sin has {rotary} columns: must be even and at most {spec.head_dim}"
            raise ValueError(msg)
        WRITE_CALL.pack_into(
            self._block,
            8 * QUERIES,
            q.data_ptr(),
            self._step("q", q, spec.num_heads),
            0,
            *self._layer(layer),
            k.data_ptr(),
            self._step("k", k, spec.num_kv_heads),
            v.data_ptr(),
            self._step("v", v, spec.num_kv_heads),
            cos_sin.data_ptr(),
            row_step("cos_sin", cos_sin, rows, rotary),
            rotary,
        )
        work = rows * (spec.num_heads + 6 * spec.num_kv_heads) * spec.head_dim // 4
        self.pool.run(WRITE, self._write_block, -(-rows // ROWS_AN_ITEM), work)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Attend with rotated queries [T, Hq, D]; see the contract.

        :return: float32 [T, Hq * D], a new tensor
        """
        spec = self.spec
        out = self.pool.empty((q.shape[0], spec.num_heads * spec.head_dim))
        ATTEND_CALL.pack_into(
            self._block,
            8 * QUERIES,
            q.data_ptr(),
            self._step("q", q, spec.num_heads),
            out.data_ptr(),
            *self._layer(layer),
        )
        self.pool.run(ATTEND, self._attend_block, *self._items)
        return out

    def _layer(self, layer: int) -> tuple[int, int, int, int]:
        """Addresses of a layer's keys, values and their scales."""
        try:
            return self._layers[layer]
        except KeyError:
            msg = f"layer is {layer}, the store has {self.spec.num_layers}"
            raise IndexError(msg) from None

    def _step(self, name: str, x: torch.Tensor, heads: int) -> int:
        """Elements between the rows of a float32 [T, heads, D] tensor.

        :raises ValueError: another type or shape, or heads that do not lie together
        """
        shape, strides = x.shape, x.stride()
        known = self._steps.get((shape, strides, x.dtype, heads))
        if known is not None:
            return known
        dims = self.spec.head_dim
        if x.dtype is torch.float32 and shape == (self._num_rows, heads, dims):
            row, head, dim = (heads * dims, dims, 1) if x.is_contiguous() else strides
            if dim == 1 and head == dims:
                self._steps[shape, strides, x.dtype, heads] = row
                return row
        msg = (
            f"{name} is {x.dtype} {list(x.shape)} with strides {list(x.stride())}; the cpu "
            f"kernel needs torch.float32 [{self._num_rows}, {heads}, {dims}], as in the "
            "prepared batch, whose rows are contiguous"
        )
        raise ValueError(msg)
