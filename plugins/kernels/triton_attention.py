"""Paged attention in Triton, for NVIDIA GPUs: prompts, decodes and mixed steps.

Under ``TRITON_INTERPRET=1`` the same kernels run on a CPU, slowly: that is how they are
checked where there is no GPU.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from enginebay import hookimpl
from enginebay.batch import Batch
from enginebay.errors import StackError
from enginebay.hookspecs.kernel import KernelContext, Kernels, KVSpec, Offer, OpSignature

from .reference_store import ReferenceStore

CONTRACT = (1, 0)
DTYPES = ("float32", "float16", "bfloat16")
MAX_HEAD_DIM = 256
ROWS = 16
"""Rows that one program rotates and writes."""
SPLITS = 8
"""Shares of a long context, when there are few tiles."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shape of a tile; both are powers of 2."""

    block_m: int = 64
    """Lines of a tile: query rows times the query heads of one KV head; 16 at least."""
    block_n: int = 64
    """Cached positions that a tile takes at a time; 16 at least."""
    programs: int = 128
    """A step with fewer tiles than this shares contexts out over splits; about the number
    of the GPU's multiprocessors."""


@dataclass(frozen=True)
class Tiles:
    """Where each tile of a step begins; an upper bound of them, idle ones last."""

    owners: torch.Tensor
    """int32 [tiles]: the sequence of each; S for idle ones"""
    firsts: torch.Tensor
    """int32 [tiles]: its first row"""
    splits: int


class TritonAttention:
    """Causal attention over a paged cache whose layout is [slot, KV head, dim]."""

    def __init__(self, spec: KVSpec, device: str, options: Options) -> None:
        self.spec = spec
        self.device = device
        self.options = options
        self.group = spec.num_heads // spec.num_kv_heads
        self.block_m = max(options.block_m, _power_of_2(self.group), 16)
        self.queries = self.block_m // self.group
        self.kept: ReferenceStore | None = None
        self.batch: Batch | None = None
        self.tiles: Tiles | None = None

    @property
    def store(self) -> ReferenceStore:
        """:raises RuntimeError: before ``allocate``"""
        if self.kept is None:
            msg = "the KV store is used before allocate(num_blocks)"
            raise RuntimeError(msg)
        return self.kept

    @property
    def bytes_per_block(self) -> int:
        """Cache bytes of one block over all layers."""
        return ReferenceStore.block_bytes(self.spec)

    def allocate(self, num_blocks: int) -> None:
        """Make room for the cache; it starts as zeros."""
        self.kept = ReferenceStore(self.spec, num_blocks, self.device)

    def prepare(self, batch: Batch) -> None:
        """Share the step's rows out into tiles, without waiting for the device."""
        counts = batch.row_starts[1:] - batch.row_starts[:-1]
        ends = torch.cumsum((counts + self.queries - 1) // self.queries, 0)
        bound = batch.num_tokens // self.queries + batch.num_sequences
        numbers = torch.arange(bound, device=ends.device)
        owners = torch.searchsorted(ends, numbers, right=True)
        owner = owners.clamp(max=batch.num_sequences - 1)
        before = torch.where(owner > 0, ends[owner - 1], 0)
        firsts = batch.row_starts[owner] + (numbers - before) * self.queries
        few = bound * self.spec.num_kv_heads < self.options.programs
        longest = batch.tables.shape[1] * batch.block_size
        splits = SPLITS if few and longest > 2 * self.options.block_n else 1
        self.batch = batch
        self.tiles = Tiles(owners.int(), firsts.int(), splits)

    def write(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cos_sin: torch.Tensor,
    ) -> None:
        """Rotate q in place, rotate k, and put k and v in the cache."""
        from .triton_tiles import rotate_and_write

        spec, rows = self.spec, q.shape[0]
        keys, values = self.store.layer(layer)
        half = cos_sin.shape[1] // 2
        grid = (-(-rows // ROWS), spec.num_heads + spec.num_kv_heads)
        rotate_and_write[grid](
            *(q, k, v, cos_sin, self._current()[0].slots, keys, values, rows),
            *(q.stride(0), k.stride(0), v.stride(0), keys.stride(0), keys.stride(1)),
            HEADS=spec.num_heads,
            D=spec.head_dim,
            D_PAD=_power_of_2(spec.head_dim),
            HALF=half,
            HALF_PAD=_power_of_2(half),
            ROWS=ROWS,
        )

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """q [T, Hq, D], rotated -> [T, Hq * D]."""
        from .triton_tiles import attend_tiles, join_splits

        spec = self.spec
        batch, tiles = self._current()
        keys, values = self.store.layer(layer)
        splits, dims = tiles.splits, _power_of_2(spec.head_dim)
        out = q.new_empty(q.shape)  # not of q's strides: its rows may lie apart
        shape = (*q.shape[:2], splits) if splits > 1 else (0,)
        parts = q.new_empty((*shape, spec.head_dim) if splits > 1 else (0,), dtype=torch.float32)
        tops, sums = (q.new_empty(shape, dtype=torch.float32) for _ in range(2))
        attend_tiles[(len(tiles.owners), spec.num_kv_heads, splits)](
            *(q, keys, values, batch.tables, tiles.owners, tiles.firsts, batch.row_starts),
            *(batch.contexts, out, parts, tops, sums, spec.scale, batch.num_sequences),
            *(q.stride(0), keys.stride(0), keys.stride(1), batch.tables.stride(0)),
            HEADS=spec.num_heads,
            GROUP=self.group,
            D=spec.head_dim,
            D_PAD=dims,
            PAGE=batch.block_size,
            WINDOW=spec.sliding_window or 0,
            QUERIES=self.queries,
            BLOCK_M=self.block_m,
            BLOCK_N=self.options.block_n,
            SPLITS=splits,
            num_warps=4 if dims <= 64 else 8,  # a thread's share of a tile stays in registers
            num_stages=2,
        )
        if splits > 1:
            grid = (q.shape[0] * spec.num_heads,)
            join_splits[grid](
                *(parts, tops, sums, out), D=spec.head_dim, D_PAD=dims, SPLITS=splits, num_warps=1
            )
        return out.flatten(1)

    def _current(self) -> tuple[Batch, Tiles]:
        if self.batch is None or self.tiles is None:
            msg = "attention is used before prepare(batch)"
            raise RuntimeError(msg)
        return self.batch, self.tiles


class TritonKernels:
    """Attention alone; other kernels of the stack take the other ops."""

    def __init__(self, options: Options, context: KernelContext) -> None:
        self.options = options
        self.device = context.device

    def attention(self, spec: KVSpec) -> TritonAttention:
        """The attention of one model, its KV store not yet allocated."""
        return TritonAttention(spec, self.device, self.options)

    def offers(self) -> Sequence[Offer]:
        """One kernel. Its bits depend on the number of splits, so on the batch."""
        return (Offer("attention", "triton", self.attention, False, self._supports),)

    def _supports(self, signature: OpSignature) -> str | None:
        sizes = dict(signature.sizes)
        unknown = set(signature.features) - {"sliding_window"}
        if self.device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            return "runs on a GPU (on a CPU only under TRITON_INTERPRET=1)"
        if signature.dtype not in DTYPES:
            return f"computes in {', '.join(DTYPES)}, not {signature.dtype}"
        if signature.scheme:
            return f"keeps keys and values in the compute dtype, not in {signature.scheme}"
        if unknown:
            return f"does not know the feature {', '.join(sorted(unknown))}"
        if sizes.get("head_dim", 0) > MAX_HEAD_DIM:
            return f"takes heads of {MAX_HEAD_DIM} dimensions at most, not {sizes['head_dim']}"
        return None


def _power_of_2(number: int) -> int:
    """The smallest that is not below ``number``."""
    return 1 << max(number - 1, 0).bit_length()


@hookimpl
def enginebay_kernel(options: Options, context: KernelContext) -> Kernels:
    """Build the kernels."""
    for field in ("block_m", "block_n"):
        value: Any = getattr(options, field)
        if value < 16 or value != _power_of_2(value):
            msg = f"kernels.triton: {field} is {value}; it must be a power of 2, 16 or more"
            raise StackError(msg)
    return TritonKernels(options, context)
