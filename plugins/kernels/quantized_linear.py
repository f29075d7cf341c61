"""Products with quantized weights in plain torch: the oracle of each scheme's kernels."""

import dataclasses
from collections.abc import Callable

import torch

from enginebay.hookspecs.kernel import QuantizedRows
from enginebay.hookspecs.quant import PackedLinear

from .quantized_rows import dequantized_rows
from .tiled_linear import added

EXACT = 1024
"""Columns whose int8 products float32 sums exactly: 127 * 127 * 1024 < 2^24."""


def w8a8(
    x: QuantizedRows, packed: PackedLinear, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """int8 rows times int8 weights, exact in int32, then scaled: [T, N] in float32.

    Integer sums don't depend on their order: row-invariant whatever the product's kernel.
    """
    product = int_product(x.values, packed.tensors["weight"]).float()
    product *= packed.tensors["scales"]
    product *= x.scales
    if packed.bias is not None:
        product += packed.bias
    return added(product, residual)


def w8a8_logits(x: QuantizedRows, packed: PackedLinear) -> torch.Tensor:
    """``w8a8``, which gives float32 anyway."""
    return w8a8(x, packed)


def int_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """int8 [T, K] times int8 [N, K], transposed: int32 [T, N], by float32 products."""
    total = torch.zeros(x.shape[0], weight.shape[0], dtype=torch.int32, device=x.device)
    for start in range(0, x.shape[1], EXACT):
        columns = slice(start, start + EXACT)
        total += (x[:, columns].float() @ weight[:, columns].float().T).to(torch.int32)
    return total


def weight_only(multiply: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A product with plain weights as one with codes, which it dequantizes at each call;
    rows in int8 as well."""

    def call(
        x: torch.Tensor | QuantizedRows, packed: PackedLinear, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        rows = dequantized_rows(x) if isinstance(x, QuantizedRows) else x
        plain = dataclasses.replace(packed, tensors={"weight": dequantized(packed).to(rows.dtype)})
        return added(multiply(rows, plain), residual)

    return call


def dequantized(packed: PackedLinear) -> torch.Tensor:
    """The weights of the schemes that quantize as float32 [N, K]."""
    codes, scales = packed.tensors["weight"].float(), packed.tensors["scales"]
    grouped = codes.view(codes.shape[0], -1, packed.group_size or codes.shape[1])
    values = grouped * scales.view(codes.shape[0], -1, 1)
    if "offsets" in packed.tensors:
        values = values + packed.tensors["offsets"].unsqueeze(-1)
    return values.view(codes.shape)
