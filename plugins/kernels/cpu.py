"""Kernels for any CPU: float32, compiled by numba for the machine it runs on.

Every op is row-invariant bit for bit: see ``cpu_attend``, ``cpu_products`` and
``cpu_quantize`` for how.

Reading order: ``cpu_lanes`` and ``cpu_memory`` (vectors), ``cpu_exp``, ``cpu_rows``,
``cpu_quantize``; ``cpu_products``, ``cpu_panels``, ``cpu_linear``; ``cpu_tiles``,
``cpu_attend``, ``cpu_attention``; ``cpu_pool`` for threads.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import torch
import torch.nn.functional as F

from enginebay import hookimpl
from enginebay.errors import PluginError
from enginebay.hookspecs.kernel import (
    Attention,
    KernelContext,
    Kernels,
    KVSpec,
    Offer,
    OpSignature,
    QuantizedRows,
)
from enginebay.hookspecs.quant import PackedLinear

from .cpu_attention import CpuAttention
from .cpu_codes import Codes
from .cpu_declines import float32_only, groups_only, scheme_only, without_offsets
from .cpu_linear import Products
from .cpu_logits import Logits
from .cpu_lookup import embedding
from .cpu_panels import pack_float, pack_int, pack_int_groups
from .cpu_pool import Pool
from .cpu_products import GROUP
from .cpu_program import Recorded
from .cpu_quantize import Quantizations
from .cpu_rows import RowOps
from .int8_proof import prove_int8

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which products of float32 come first."""

    float_products: Literal["panels", "torch"] = "panels"
    """``panels``: row-invariant, compiled here. ``torch``: torch's own, whose bits depend on
    the number of rows; to compare with."""


def linear(
    x: torch.Tensor, packed: PackedLinear, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """x [T, K] times the layer's weight [N, K], transposed, plus its bias: [T, N]."""
    product = F.linear(x, packed.tensors["weight"], packed.bias)
    return product if residual is None else residual.add_(product)


def int_mm(
    x: QuantizedRows, packed: PackedLinear, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """int8 rows times int8 weights by torch's product, then scaled: [T, N]."""
    product = torch._int_mm(x.values, packed.tensors["weight"].T).float()  # noqa: SLF001
    product *= packed.tensors["scales"]
    product *= x.scales
    if packed.bias is not None:
        product += packed.bias
    return product if residual is None else residual.add_(product)


def known_features_only(signature: OpSignature) -> str | None:
    """Why not, for another dtype or an attention that does more than ours."""
    unknown = set(signature.features) - {"sliding_window", "soft_cap"}
    if signature.scheme not in ("", "int8"):
        return f"keeps keys and values in float32 or int8, not in {signature.scheme}"
    if unknown:
        return f"does not know the feature {', '.join(sorted(unknown))}"
    return float32_only(signature)


class CpuKernels:
    """The plugin's offers, and the threads they share."""

    def __init__(self, context: KernelContext, options: Options = Options()) -> None:  # noqa: B008
        if context.device != "cpu":
            msg = f"kernel 'cpu' runs on device 'cpu', the stack says {context.device!r}"
            raise PluginError(msg)
        self.options = options
        self.pool = Pool(context.threads)
        self.rows = RowOps(self.pool)
        self.quantizations = Quantizations(self.pool)
        self.products = Products(self.pool)
        self.heads = Logits(self.pool)
        self.codes = Codes(self.pool)

    def attention(self, spec: KVSpec) -> Attention:
        """Attention with a KV store of its own."""
        return CpuAttention(spec, self.pool)

    def recorded(self, body: Callable[..., None]) -> Recorded:
        """A decoder's layers, recorded once for each number of rows."""
        return Recorded(body, self.pool)

    def offers(self) -> Sequence[Offer]:
        """Offers in order of preference within an op."""
        rows, quantized = self.rows, self.quantizations
        int8 = scheme_only("int8")
        return (
            Offer("embedding", "numba", embedding, True, float32_only),
            Offer("rms_norm", "numba", rows.rms_norm, True, float32_only),
            Offer("silu_and_mul", "numba", rows.silu_and_mul, True, float32_only),
            Offer("quantize", "numba", quantized.quantize, True, int8),
            Offer("rms_norm_quantize", "numba", quantized.rms_norm_quantize, True, int8),
            Offer("silu_and_mul_quantize", "numba", quantized.silu_and_mul_quantize, True, int8),
            Offer("attention", "numba", self.attention, True, known_features_only),
            *self._floats(),
            *(offer for op in ("linear", "logits") for offer in self._int8(op)),
            *self.codes.offers(),
        )

    def _floats(self) -> Sequence[Offer]:
        """Products of float32 with float32."""
        plain = scheme_only("float")
        compiled = (
            Offer("linear", "panels", self.products.floats, True, plain, pack=pack_float),
            Offer("logits", "rows", self.heads.floats, True, plain),
        )
        torchs = tuple(Offer(op, "torch", linear, False, plain) for op in ("linear", "logits"))
        return torchs + compiled if self.options.float_products == "torch" else compiled + torchs

    def _int8(self, op: str) -> Sequence[Offer]:
        """Products of int8 with int8; exact, so that any of them is row-invariant."""
        ints, w8a8 = self.products.ints, scheme_only("w8a8")
        groups = groups_only(without_offsets("w8a8-groups"), GROUP)
        proof = prove_int8(ints, pack_int)
        return (
            Offer(op, "int8-panels", ints, True, w8a8, proof, pack_int),
            Offer(op, "torch-int-mm", int_mm, True, w8a8, prove_int8(int_mm)),
            Offer(op, "int8-groups", self.products.int_groups, True, groups, pack=pack_int_groups),
        )


@hookimpl
def enginebay_kernel(options: Options, context: KernelContext) -> Kernels:
    """Build the CPU kernels."""
    return CpuKernels(context, options)
