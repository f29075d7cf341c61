"""Paged attention on the CPU: the ``attention`` op of the plugin.

Buffers: the argument block, the list of pieces and the scratch memory live as long as
the object; the pieces grow by doubling. The output of ``attend`` is a new tensor.
"""

import struct
from typing import Any

import numpy as np
import torch

from enginebay.batch import Batch
from enginebay.errors import IntegrityError, PluginError
from enginebay.hookspecs.kernel import KVSpec

from .cpu_attend import ATTEND, SCORE_STEP, TILE
from .cpu_plan import DIVIDE
from .cpu_pool import Pool
from .cpu_rows import row_step
from .cpu_store import CpuStore, bytes_per_block
from .cpu_words import CONTEXTS, GROUP, NUM_WORDS, QUERIES, SCRATCH
from .cpu_write import ROWS_AN_ITEM, WRITE

PIECE_HEADS = 48
"""Query rows times heads of a piece: enough to share a tile, few enough to split."""

SIZES = struct.Struct("6qf4x")
STEP = struct.Struct("7q")
ATTEND_CALL = struct.Struct("5q")
WRITE_CALL = struct.Struct("12q")


class CpuAttention:
    """Attention and its KV store. Called from the step thread alone."""

    def __init__(self, spec: KVSpec, pool: Pool) -> None:
        if spec.dtype != "float32":
            msg = f"kernel 'cpu': dtype = {spec.dtype!r} for the KV cache; it stores float32 only"
            raise PluginError(msg)
        if spec.num_heads % spec.num_kv_heads:
            msg = (
                f"kernel 'cpu': {spec.num_heads} query heads do not divide by "
                f"{spec.num_kv_heads} KV heads"
            )
            raise PluginError(msg)
        self.spec = spec
        self.pool = pool
        self.bytes_per_block = bytes_per_block(spec)
        self._group = spec.num_heads // spec.num_kv_heads
        self._piece_rows = max(1, PIECE_HEADS // self._group)
        self._words = np.zeros(NUM_WORDS, dtype=np.int64)
        self._address = self._words.ctypes.data
        self._block = self._words.data
        self._pieces = np.zeros(3 * 64, dtype=np.int64)
        self._batch: Batch | None = None
        """Held because the argument block points into its tensors."""
        self._num_rows = 0
        self._layers: dict[int, tuple[int, int]] = {}
        self._store: CpuStore | None = None

    @property
    def store(self) -> CpuStore:
        """The keys and values; available after ``allocate``."""
        if self._store is None:
            msg = "the KV store is not there yet: call allocate(num_blocks) first"
            raise RuntimeError(msg)
        return self._store

    def allocate(self, num_blocks: int) -> None:
        """Make the pool of blocks and each thread's scratch memory, and compile all code."""
        spec = self.spec
        self._store = CpuStore(spec, num_blocks)
        self._layers = self._addresses(self._store)
        padded = -(-spec.head_dim // 16) * 16
        rows = self._piece_rows * self._group
        longs = 3 * TILE + rows
        floats = rows * (2 + SCORE_STEP + 2 * padded)
        step = -(-(8 * longs + 4 * floats) // 64) * 64
        self._scratch = np.zeros(self.pool.threads * step, dtype=np.uint8)
        SIZES.pack_into(
            self._block,
            8 * GROUP,
            self._group,
            spec.num_kv_heads,
            spec.head_dim,
            padded,
            spec.block_size,
            spec.sliding_window or 0,
            spec.scale,
        )
        self._words[SCRATCH : SCRATCH + 3] = (self._scratch.ctypes.data, step, rows)
        self.pool.warm_up()
        DIVIDE.compile()
        for task in (WRITE, ATTEND):
            task.compile()

    def buffers(self) -> tuple[torch.Tensor | np.ndarray[Any, Any], ...]:
        """Argument block, pieces, scratch memory, and the step's batch while it is held."""
        held = () if self._batch is None else self._batch.tensors()
        return (self._words, self._pieces, self._scratch, *held)

    def prepare(self, batch: Batch) -> None:
        """Check a step's tables and slots and cut it into pieces of work.

        :raises IntegrityError: a block id, slot or context that does not fit the pool
        """
        if batch.block_size != self.spec.block_size:
            msg = f"batch.block_size is {batch.block_size}, the store's {self.spec.block_size}"
            raise IntegrityError(msg)
        self._batch, self._num_rows = batch, batch.num_tokens
        most = batch.num_tokens // self._piece_rows + batch.num_sequences
        if 3 * most > len(self._pieces):
            self._pieces = np.zeros(6 * most, dtype=np.int64)
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
        self._num_pieces, seen = DIVIDE.call(
            self._address,
            batch.num_sequences,
            batch.tables.shape[1],
            self.store.num_blocks,
            self._piece_rows,
        )
        if self._num_pieces < 0:
            msg = (
                f"sequence {seen} of the batch: its rows, context, block table and slots do not "
                f"fit each other or the pool of {self.store.num_blocks} blocks"
            )
            raise IntegrityError(msg)
        self._work = seen * self.spec.num_heads * self.spec.head_dim // 10

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
        self.pool.run(WRITE, self._address, -(-rows // ROWS_AN_ITEM), work)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Attend with rotated queries [T, Hq, D]; see the contract.

        :return: float32 [T, Hq * D], a new tensor
        """
        spec = self.spec
        out = torch.empty((q.shape[0], spec.num_heads * spec.head_dim))
        ATTEND_CALL.pack_into(
            self._block,
            8 * QUERIES,
            q.data_ptr(),
            self._step("q", q, spec.num_heads),
            out.data_ptr(),
            *self._layer(layer),
        )
        self.pool.run(ATTEND, self._address, self._num_pieces * spec.num_kv_heads, self._work)
        return out

    def _addresses(self, store: CpuStore) -> dict[int, tuple[int, int]]:
        """Where the keys and values of each layer begin."""
        keys, values = store.keys.data_ptr(), store.values.data_ptr()
        size = store.num_blocks * self.bytes_per_block // (2 * self.spec.num_layers)
        return {n: (keys + n * size, values + n * size) for n in range(self.spec.num_layers)}

    def _layer(self, layer: int) -> tuple[int, int]:
        """Addresses of a layer's keys and values."""
        try:
            return self._layers[layer]
        except KeyError:
            msg = f"layer is {layer}, the store has {self.spec.num_layers}"
            raise IndexError(msg) from None

    def _step(self, name: str, x: torch.Tensor, heads: int) -> int:
        """Elements between the rows of a float32 [T, heads, D] tensor.

        :raises ValueError: another type or shape, or heads that do not lie together
        """
        dims = self.spec.head_dim
        if x.dtype is torch.float32 and x.shape == (self._num_rows, heads, dims):
            if x.is_contiguous():
                return heads * dims
            row, head, dim = x.stride()
            if dim == 1 and head == dims:
                return row
        msg = (
            f"{name} is {x.dtype} {list(x.shape)} with strides {list(x.stride())}; the cpu "
            f"kernel needs torch.float32 [{self._num_rows}, {heads}, {dims}], as in the "
            "prepared batch, whose rows are contiguous"
        )
        raise ValueError(msg)
