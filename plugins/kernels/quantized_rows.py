"""Quantization of activations in plain torch, alone and behind the op before it."""

import torch

from enginebay.hookspecs.kernel import QuantizedRows

from . import row_ops

GREATEST = 127.0


def quantize(x: torch.Tensor, scale: torch.Tensor | None, group: int = 0) -> QuantizedRows:
    """int8 values and float32 scales for each row of x [T, K]; symmetric.

    Elementwise and a maximum, so a row has the same bits wherever it stands. A group of
    zeros has the scale 1.

    :param scale: one element for all rows; ``None``: each greatest magnitude / 127
    :param group: columns that share a scale, a divisor of K; 0: all of a row
    """
    rows, size = x.shape
    grouped = x.reshape(rows, size // group if group else 1, group or size)
    if scale is None:
        greatest = grouped.abs().amax(dim=2).float()
        scales = torch.where(greatest == 0, 1.0, greatest / GREATEST)
    else:
        scales = scale.float().expand(grouped.shape[:2]).contiguous()
    values = torch.round(grouped / scales.unsqueeze(2)).clamp_(-GREATEST, GREATEST)
    return QuantizedRows(values.to(torch.int8).view(rows, size), scales)


def rms_norm_quantize(
    x: torch.Tensor, weight: torch.Tensor, eps: float, scale: torch.Tensor | None, group: int = 0
) -> QuantizedRows:
    """``rms_norm``, then ``quantize``."""
    return quantize(row_ops.rms_norm(x, weight, eps), scale, group)


def silu_and_mul_quantize(
    gate_up: torch.Tensor, scale: torch.Tensor | None, group: int = 0
) -> QuantizedRows:
    """``silu_and_mul``, then ``quantize``."""
    return quantize(row_ops.silu_and_mul(gate_up), scale, group)


def dequantized_rows(x: QuantizedRows) -> torch.Tensor:
    """What int8 rows stand for: float32 [T, K]."""
    (rows, size), groups = x.values.shape, x.scales.shape[1]
    grouped = x.values.float().view(rows, groups, size // groups)
    return (grouped * x.scales.unsqueeze(2)).flatten(1)
