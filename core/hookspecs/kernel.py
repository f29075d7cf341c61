"""Kernel: callables for named ops, resolved once into the kernel table.

The ops, with T rows (tokens) of one step, H hidden, V vocabulary, I intermediate,
D head_dim, Hq query heads, Hk KV heads. Tensors are contiguous unless said.

=========================  ========================================================
``embedding``              (ids int64 [T], weight [V, H]) -> [T, H]
``rms_norm``               (x [R, N], weight [N], eps) -> [R, N]; mean of squares in
                           float32
``silu_and_mul``           (gate_up [T, 2 I]) -> [T, I]: silu(first half) * second half
``quantize``               (x [T, K], scale, group) -> QuantizedRows
``rms_norm_quantize``      (x [T, K], weight [K], eps, scale, group) -> QuantizedRows
``silu_and_mul_quantize``  (gate_up [T, 2 I], scale, group) -> QuantizedRows
``linear``                 (x, packed: PackedLinear, residual=None) -> [T, N]; x is [T, K],
                           or QuantizedRows when ``packed.inputs`` is ``int8``. Bias
                           included; a ``residual`` [T, N] is added to in place and
                           returned
``logits``                 (x, packed) -> float32 [T, N]; as ``linear``
``attention``              (spec: KVSpec) -> Attention, which owns the KV store's layout
=========================  ========================================================

``group`` is how many columns share a scale, a divisor of K; 0: the whole row. ``scale`` is
``None`` (each row and group its own, greatest magnitude / 127) or, without groups, a float32
tensor of one element that every row has; values are rounded half to even and clamped to
-127 .. 127. The two fused ops need not be offered: the table then joins their parts, and says so.

An op is *row-invariant* when a row's result has the same bits whatever other rows
stand beside it, wherever it stands and however the rows are split over steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from ..flow import BlockOp, Frozen, TokenIds
from .markers import hookspec

if TYPE_CHECKING:
    import numpy as np
    import torch

    from ..batch import Batch
    from .quant import PackedLinear

FUSED: Final = {
    "rms_norm_quantize": ("rms_norm", "quantize"),
    "silu_and_mul_quantize": ("silu_and_mul", "quantize"),
}
"""Fused ops and the two ops that do the same one after the other."""


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Activations in int8: with G groups of columns, group g of row t stands for its part of
    ``values[t]`` times ``scales[t, g]``."""

    values: "torch.Tensor"
    """int8 [T, K], contiguous, each in -127 .. 127"""
    scales: "torch.Tensor"
    """float32 [T, G], contiguous; 1 where all values are zeros"""


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
    soft_cap: float | None = None
    """Scores become soft_cap * tanh(score / soft_cap) before the softmax (Gemma 2;
    arXiv 2408.00118)."""
    cache_dtype: str = ""
    """How keys and values are kept: empty for ``dtype``, or ``int8`` with a float32 scale
    a token and KV head."""


class OpSignature(Frozen, frozen=True, kw_only=True):
    """One op as a model needs it: static sizes; the number of rows is free."""

    op: str
    dtype: str = "float32"
    scheme: str = ""
    """For ``linear`` and ``logits``: the weight scheme that packed it. For the ops that
    quantize: ``int8``."""
    sizes: tuple[tuple[str, int], ...] = ()
    """For example (("in", 576), ("out", 1536)), ("group", 32) for groupwise weights
    or, of an op that quantizes, rows, ("input_group", 32) for a product with such rows."""
    features: tuple[str, ...] = ()
    """What only some uses of an op need. ``attention``: ``sliding_window``, ``soft_cap``;
    ``linear``: ``offsets``, when weights have them."""


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
        [position, head, dim]; with an int8 cache the float32 scales, [position, head],
        follow each of the two."""

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

        The rows of q, k and v may lie apart, as views of one fused projection do; within
        a row the heads lie together.

        :param q: [T, Hq, D]; rotated in place
        :param k: [T, Hk, D]; may be rotated in place
        :param v: [T, Hk, D]
        :param cos_sin: float32 [T, rotary_dim]: cosines, then sines, each
            rotary_dim / 2 values, for the half-split ("rotate half") convention
        """

    def attend(self, layer: int, q: "torch.Tensor") -> "torch.Tensor":
        """Softmax attention of every row over its cached positions, its own included.

        :param q: [T, Hq, D], rotated; its rows may lie apart
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
    prove: Callable[[OpSignature], str | None] | None = None
    """Asked once a signature, after ``supports``: computes known answers on this machine
    and says what came out wrong. For kernels that hardware or a library may get silently
    wrong."""
    pack: "Callable[[PackedLinear], PackedLinear] | None" = None
    """For ``linear`` and ``logits``: lays weights out as ``call`` reads them. Called once a
    layer, while the model loads, and for shapes alone on the device ``meta``; what it
    returns is what stays in memory."""


class Kernels(Protocol):
    """A set of kernels for one kind of hardware."""

    def offers(self) -> Sequence[Offer]:
        """Offers in order of preference within an op."""


@runtime_checkable
class Replaying(Protocol):
    """Optional, of a kernel plugin: runs steps that it has seen again without Python."""

    def recorded(self, body: Callable[..., None]) -> Callable[..., None]:
        """Called when every op of a model is this plugin's.

        :param body: a decoder's layers: (hidden [T, H], cos_sin [T, D], attention); changes
            ``hidden`` in place
        :return: does the same; may record a call and replay it for the next of its shapes,
            as long as nothing is lost by that
        """


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
