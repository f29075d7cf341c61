"""Symmetric int8 weights, one scale a row (output channel): codes in -127 .. 127."""

from typing import Final

import torch

GREATEST: Final = 127.0
CHUNK: Final = 1 << 20
"""Weights that are rounded at a time: what floats take beside the codes is bounded."""


def channel_scales(weight: torch.Tensor) -> torch.Tensor:
    """float32 [N]: each row's greatest magnitude / 127; 1 for a row of zeros."""
    greatest = weight.abs().amax(dim=1).float()
    return torch.where(greatest == 0, 1.0, greatest / GREATEST)


def rounded(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """int8 [N, K]: a weight [N, K] in units of its row's scale, to the nearest code."""
    return torch.round(weight / scales.unsqueeze(1)).clamp_(-GREATEST, GREATEST).to(torch.int8)


def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes int8 [N, K], scales float32 [N]) of a weight in any float dtype.

    Rounded a few rows at a time; shapes alone on the device ``meta``.
    """
    rows = max(1, CHUNK // max(1, weight.shape[1]))
    codes = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    for start in range(0, weight.shape[0], rows):
        part = slice(start, start + rows)
        scales[part] = channel_scales(weight[part])
        codes[part] = rounded(weight[part], scales[part])
    return codes, scales
