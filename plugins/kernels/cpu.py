"""Kernels for any CPU: float32, compiled by numba for the machine it runs on.

``rms_norm``, ``silu_and_mul`` and ``attention`` are row-invariant bit for bit: see
``cpu_attend`` for how. ``linear`` and ``logits`` are torch's matrix product, which is
not: its blocking depends on the number of rows. ``embedding`` copies rows.

Reading order: ``cpu_lanes`` and ``cpu_memory`` (vectors), ``cpu_exp``, ``cpu_rows``,
``cpu_tiles``, ``cpu_attend``, ``cpu_attention``; ``cpu_pool`` for threads.
"""

from collections.abc import Sequence

import msgspec
import torch
import torch.nn.functional as F

from enginebay import hookimpl
from enginebay.errors import PluginError
from enginebay.hookspecs.kernel import Attention, KernelContext, Kernels, KVSpec, Offer, OpSignature
from enginebay.hookspecs.quant import PackedLinear

from .cpu_attention import CpuAttention
from .cpu_pool import Pool
from .cpu_rows import RowOps

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """There is nothing to set."""


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows ``ids`` (int64 [T]) of ``weight`` [V, H]."""
    return F.embedding(ids, weight)


def linear(
    x: torch.Tensor, packed: PackedLinear, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """x [T, K] times the layer's weight [N, K], transposed, plus its bias: [T, N]."""
    product = F.linear(x, packed.tensors["weight"], packed.bias)
    return product if residual is None else residual.add_(product)


def float32_only(signature: OpSignature) -> str | None:
    """Why not, for another compute dtype."""
    if signature.dtype != "float32":
        return f"computes in float32, not {signature.dtype}"
    return None


def plain_weights_only(signature: OpSignature) -> str | None:
    """Why not, for another dtype or packed weights."""
    if signature.scheme not in ("", "float"):
        return f"multiplies plain weights, not the scheme {signature.scheme!r}"
    return float32_only(signature)


def known_features_only(signature: OpSignature) -> str | None:
    """Why not, for another dtype or an attention that does more than ours."""
    unknown = set(signature.features) - {"sliding_window"}
    if signature.scheme:
        return f"keeps keys and values in float32, not in {signature.scheme}"
    if unknown:
        return f"does not know the feature {', '.join(sorted(unknown))}"
    return float32_only(signature)


class CpuKernels:
    """The plugin's offers, and the threads they share."""

    def __init__(self, context: KernelContext) -> None:
        if context.device != "cpu":
            msg = f"kernel 'cpu' runs on device 'cpu', the stack says {context.device!r}"
            raise PluginError(msg)
        self.pool = Pool(context.threads)
        self.rows = RowOps(self.pool)

    def attention(self, spec: KVSpec) -> Attention:
        """Attention with a KV store of its own."""
        return CpuAttention(spec, self.pool)

    def offers(self) -> Sequence[Offer]:
        """One kernel an op."""
        rows = self.rows
        return (
            Offer("embedding", "torch", embedding, True, float32_only),
            Offer("rms_norm", "numba", rows.rms_norm, True, float32_only),
            Offer("silu_and_mul", "numba", rows.silu_and_mul, True, float32_only),
            Offer("attention", "numba", self.attention, True, known_features_only),
            Offer("linear", "torch", linear, False, plain_weights_only),
            Offer("logits", "torch", linear, False, plain_weights_only),
        )


@hookimpl
def enginebay_kernel(options: Options, context: KernelContext) -> Kernels:
    """Build the CPU kernels."""
    return CpuKernels(context)
