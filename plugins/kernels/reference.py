"""The reference kernels: plain torch in float32, the oracle of all others.

float64 runs too, for tests of single ops. ``linear`` and ``logits`` are offered twice for
float products: ``mm`` is one product over all rows, ``tiles`` the row-invariant form,
which the kernel table takes when the stack requires row invariance. Codes in groups
are dequantized at each call, and so are int8 rows for them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from enginebay import hookimpl
from enginebay.hookspecs.kernel import KernelContext, Kernels, KVSpec, Offer, OpSignature

from . import quantized_linear, quantized_rows, row_ops, tiled_linear
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
            _offer("quantize", "torch", quantized_rows.quantize, ("int8",)),
            _offer("rms_norm_quantize", "torch", quantized_rows.rms_norm_quantize, ("int8",)),
            _offer(
                "silu_and_mul_quantize", "torch", quantized_rows.silu_and_mul_quantize, ("int8",)
            ),
            *_products("linear", tiled_linear.mm, tiled_linear.tiles, quantized_linear.w8a8),
            *_products(
                "logits",
                tiled_linear.mm_logits,
                tiled_linear.tiles_logits,
                quantized_linear.w8a8_logits,
            ),
            Offer("attention", "torch", self.attention, True, _supports_attention),
        )

    def attention(self, spec: KVSpec) -> ReferenceAttention:
        """The attention of one model, its KV store not yet allocated."""
        return ReferenceAttention(spec, self.context.device)


def _products(
    op: str, mm: Callable[..., Any], tiles: Callable[..., Any], w8a8: Callable[..., Any]
) -> tuple[Offer, ...]:
    codes = ("int8", "int4", "w8a8-groups", "w4a8")
    return (
        _offer(op, "mm", mm, row_invariant=False),
        _offer(op, "tiles", tiles),
        _offer(op, "exact", w8a8, ("w8a8",)),
        _offer(op, "codes-mm", quantized_linear.weight_only(mm), codes, row_invariant=False),
        _offer(op, "codes-tiles", quantized_linear.weight_only(tiles), codes),
    )


def _offer(
    op: str,
    name: str,
    call: Callable[..., Any],
    schemes: tuple[str, ...] = ("", "float"),
    *,
    row_invariant: bool = True,
) -> Offer:
    def supports(signature: OpSignature) -> str | None:
        if signature.dtype not in DTYPES:
            return f"computes in {' or '.join(DTYPES)}, not in {signature.dtype}"
        if signature.scheme not in schemes:
            known = " or ".join(repr(scheme) for scheme in schemes if scheme) or "none"
            return f"runs the scheme {known}, not {signature.scheme!r}"
        return None

    return Offer(op=op, name=name, call=call, row_invariant=row_invariant, supports=supports)


def _supports_attention(signature: OpSignature) -> str | None:
    unknown = set(signature.features) - {"sliding_window", "soft_cap"}
    if signature.dtype not in DTYPES:
        return f"computes in {' or '.join(DTYPES)}, not in {signature.dtype}"
    if signature.scheme not in ("", "int8"):
        return f"keeps keys and values in the compute dtype or int8, not in {signature.scheme}"
    if unknown:
        return f"does not know the feature {', '.join(sorted(unknown))}"
    return None


@hookimpl
def enginebay_kernel(options: Options, context: KernelContext) -> Kernels:
    """Build the reference kernels."""
    return ReferenceKernels(context)
