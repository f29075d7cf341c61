"""The reference kernels: plain torch in float32, the oracle of all others.

float64 runs too, for tests of single ops. ``linear`` and ``logits`` are offered twice:
``mm`` is one product over all rows, ``tiles`` the row-invariant form, which the kernel
table takes when the stack requires row invariance.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from enginebay import hookimpl
from enginebay.hookspecs.kernel import KernelContext, Kernels, KVSpec, Offer, OpSignature

from . import row_ops, tiled_linear
from .reference_attention import ReferenceAttention

CONTRACT = (1, 0)
DTYPES = ("float32", "float64")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to set: a reference has no variants."""


class ReferenceKernels:
    """Every op, on whatever device torch has."""

    def __init__(self, context: KernelContext) -> None:
        self.context = context

    def offers(self) -> Sequence[Offer]:
        """Offers in order of preference within an op."""
        return (
            _offer("embedding", "torch", row_ops.embedding),
            _offer("rms_norm", "torch", row_ops.rms_norm),
            _offer("silu_and_mul", "torch", row_ops.silu_and_mul),
            _offer("linear", "mm", tiled_linear.mm, row_invariant=False),
            _offer("linear", "tiles", tiled_linear.tiles),
            _offer("logits", "mm", tiled_linear.mm_logits, row_invariant=False),
            _offer("logits", "tiles", tiled_linear.tiles_logits),
            _offer("attention", "torch", self.attention),
        )

    def attention(self, spec: KVSpec) -> ReferenceAttention:
        """The attention of one model, its KV store not yet allocated."""
        return ReferenceAttention(spec, self.context.device)


def _offer(op: str, name: str, call: Callable[..., Any], *, row_invariant: bool = True) -> Offer:
    return Offer(op=op, name=name, call=call, row_invariant=row_invariant, supports=_supports)


def _supports(signature: OpSignature) -> str | None:
    if signature.dtype not in DTYPES:
        return f"computes in {' or '.join(DTYPES)}, not in {signature.dtype}"
    if signature.scheme not in ("", "float"):
        return f"runs the weight scheme 'float', not {signature.scheme!r}"
    return None


@hookimpl
def enginebay_kernel(options: Options, context: KernelContext) -> Kernels:
    """Build the reference kernels."""
    return ReferenceKernels(context)
