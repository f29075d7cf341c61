"""Quantization of activations in plain torch, alone and behind the op before it."""

import torch

from enginebay.hookspecs.kernel import QuantizedRows

from . import row_ops

GREATEST = 127.0


def quantize(x: torch.Tensor, scale: torch.Tensor | None) -> QuantizedRows:
    """int8 values and a float32 scale for each row of x [T, K]; symmetric.

    Elementwise and a maximum, so a row has the same bits wherever it stands. A row of
    zeros has the scale 1.

    :param scale: one element for all rows; ``None``: each row's greatest magnitude / 127
    """
    if scale is None:
        greatest = x.abs().amax(dim=1).float()
        scales = torch.where(greatest == 0, 1.0, greatest / GREATEST)
    else:
        scales = scale.float().expand(x.shape[0]).contiguous()
    values = torch.round(x / scales.unsqueeze(1)).clamp_(-GREATEST, GREATEST)
    return QuantizedRows(values.to(torch.int8), scales)


def rms_norm_quantize(
    x: torch.Tensor, weight: torch.Tensor, eps: float, scale: torch.Tensor | None
) -> QuantizedRows:
    """``rms_norm``, then ``quantize``."""
    return quantize(row_ops.rms_norm(x, weight, eps), scale)


def silu_and_mul_quantize(gate_up: torch.Tensor, scale: torch.Tensor | None) -> QuantizedRows:
    """``silu_and_mul``, then ``quantize``."""
    return quantize(row_ops.silu_and_mul(gate_up), scale)
