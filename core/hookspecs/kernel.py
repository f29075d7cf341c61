"""Kernel: callables for named ops, resolved once into the kernel table.

The ops, with T rows (tokens) of one step, H hidden, V vocabulary, I intermediate,
D head_dim, Hq query heads, Hk KV heads. Tensors are contiguous unless said.

====================  =============================================================
``embedding``         (ids int64 [T], weight [V, H]) -> [T, H]
``rms_norm``          (x [R, N], weight [N], eps) -> [R, N]; mean of squares in float32
``linear``            (x [T, K], packed: PackedLinear) -> [T, N]; bias included
``logits``            as ``linear``, output float32
``silu_and_mul``      (gate_up [T, 2 I]) -> [T, I]: silu(first half) * second half
``attention``         (spec: KVSpec) -> Attention, which owns the KV store's layout
====================  =============================================================

An op is *row-invariant* when a row's result has the same bits whatever other rows
stand beside it, wherever it stands and however the rows are split over steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..flow import BlockOp, Frozen, TokenIds
from .markers import hookspec

if TYPE_CHECKING:
    import numpy as np
    import torch

    from ..batch import Batch


class KVSpec(Frozen, frozen=True, kw_only=True):
    """What the KV store must hold."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    """Tokens a block."""
    max_model_len: int
    dtype: str = "float32"
    scale: float = 1.0
    """Multiplies q . k before the softmax."""
    sliding_window: int | None = None


class OpSignature(Frozen, frozen=True, kw_only=True):
    """One op as a model needs it: static sizes; the number of rows is free."""

    op: str
    dtype: str = "float32"
    scheme: str = ""
    """For ``linear`` and ``logits``: the weight scheme that packed it."""
    sizes: tuple[tuple[str, int], ...] = ()
    """For example (("in", 576), ("out", 1536))."""
    features: tuple[str, ...] = ()
    """For ``attention``: ``sliding_window`` when it is used."""


class KVStore(Protocol):
    """The paged keys and values of every layer; its layout is the kernel's secret."""

    @property
    def bytes_per_block(self) -> int: ...
    def tensors(self) -> "tuple[torch.Tensor, ...]":
        """Every tensor that holds cache bytes, for the ledger."""

    def copy(self, ops: Sequence[BlockOp]) -> None:
        """Copy whole blocks inside the device pool, in order."""

    def save(self, ops: Sequence[BlockOp]) -> None:
        """Copy device block ``source`` to host slot ``target``."""

    def load(self, ops: Sequence[BlockOp]) -> None:
        """Copy host slot ``source`` to device block ``target``. The slot's content is
        worthless afterwards."""

    def export(self, block_ids: TokenIds) -> bytes:
        """The bytes of blocks in a layout-independent order: layer, block, K then V,
        [position, head, dim]."""

    def import_(self, block_ids: TokenIds, data: bytes) -> None:
        """The reverse of ``export``."""


@runtime_checkable
class HostSlots(Protocol):
    """Optional, of a KV store: host memory that is there before it is needed."""

    def reserve_host(self, num_slots: int) -> None:
        """Make slots ``0 .. num_slots - 1``, pinned where the device copies by DMA. A
        store without this makes a slot when it is first saved to."""


@runtime_checkable
class Buffered(Protocol):
    """Optional, of an attention: working memory that it keeps between steps."""

    def buffers(self) -> "tuple[torch.Tensor | np.ndarray[Any, Any], ...]":
        """All of it but the KV store, for the ledger's line ``runtime``."""


class Attention(Protocol):
    """Paged causal attention and the KV store it reads."""

    @property
    def store(self) -> KVStore:
        """Available after ``allocate``."""

    @property
    def bytes_per_block(self) -> int:
        """Cache bytes of one block over all layers; known before ``allocate``."""

    def allocate(self, num_blocks: int) -> None: ...
    def prepare(self, batch: "Batch") -> None:
        """Make this step's metadata. Called once a step, before any layer."""

    def write(
        self,
        layer: int,
        q: "torch.Tensor",
        k: "torch.Tensor",
        v: "torch.Tensor",
        cos_sin: "torch.Tensor",
    ) -> None:
        """Rotate q in place, rotate k, and put k and v in the cache.

        :param q: [T, Hq, D]; rotated in place
        :param k: [T, Hk, D]; may be rotated in place
        :param v: [T, Hk, D]
        :param cos_sin: float32 [T, rotary_dim]: cosines, then sines, each
            rotary_dim / 2 values, for the half-split ("rotate half") convention
        """

    def attend(self, layer: int, q: "torch.Tensor") -> "torch.Tensor":
        """Softmax attention of every row over its cached positions, its own included.

        :param q: [T, Hq, D], rotated
        :return: [T, Hq * D]
        """


@dataclass(frozen=True)
class Offer:
    """One callable that a kernel plugin offers for one op."""

    op: str
    name: str
    """The kernel's own name, unique in its plugin."""
    call: Callable[..., Any]
    row_invariant: bool
    supports: Callable[[OpSignature], str | None] = lambda signature: None
    """``None`` when it can run the signature; else why not, for people to read."""


class Kernels(Protocol):
    """A set of kernels for one kind of hardware."""

    def offers(self) -> Sequence[Offer]:
        """Offers in order of preference within an op."""


@dataclass(frozen=True)
class KernelContext:
    """What a kernel plugin is built with."""

    device: str
    threads: int
    """Threads of the one pool that torch and numba share."""


@hookspec(firstresult=True)
def enginebay_kernel(options: Any, context: KernelContext) -> Kernels:  # type: ignore[empty-body]
    """Build a kernel plugin. Called once for each name in the stack's ``kernels``.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: the device and the thread count
    """
