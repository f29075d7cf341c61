"""4-bit codes of groups of weights, with the scale and offset of least squared error."""

import torch

from .weight_only import row_chunks

GREATEST = 15.0
Group = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Codes [N, G, size] as floats, scales and offsets [N, G, 1]."""


def quantized(
    weight: torch.Tensor, group: int, rounds: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(codes uint8 [N, K] in 0 .. 15, scales and offsets float32 [N, K / group]).

    :param weight: [N, K] in any float dtype; on the device ``meta`` shapes alone
    :param rounds: how often scale, offset and codes are fitted to each other
    """
    outer, inner = weight.shape
    codes = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    scales = torch.empty(outer, inner // group, device=weight.device)
    offsets = torch.empty_like(scales)
    for rows in row_chunks(weight):
        values = weight[rows].float().reshape(-1, inner // group, group)
        found, step, start = _between_extremes(values)
        for _ in range(rounds):
            step, start = _fitted(values, found, step, start)
            found = _nearest(values, step, start)
        codes[rows] = found.view(-1, inner).to(torch.uint8)
        scales[rows], offsets[rows] = step.squeeze(2), start.squeeze(2)
    return codes, scales, offsets


def _between_extremes(values: torch.Tensor) -> Group:
    """Sixteen even steps from the least to the greatest; equal weights are all code 0."""
    start = values.amin(dim=2, keepdim=True)
    span = values.amax(dim=2, keepdim=True) - start
    step = torch.where(span == 0, 1.0, span / GREATEST)
    return _nearest(values, step, start), step, start


def _nearest(values: torch.Tensor, step: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    return torch.sub(values, start).div_(step).round_().clamp_(0.0, GREATEST)


def _fitted(
    values: torch.Tensor, codes: torch.Tensor, step: torch.Tensor, start: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The line through (code, weight) of least squared error, where there are two codes."""
    code_mean = codes.mean(dim=2, keepdim=True)
    value_mean = values.mean(dim=2, keepdim=True)
    apart = codes - code_mean
    spread = apart.square().sum(dim=2, keepdim=True)
    joint = apart.mul_(values).sum(dim=2, keepdim=True)
    slope = joint / spread
    usable = slope > 0  # false for NaN: a group of one code
    step = torch.where(usable, slope, step)
    return step, torch.where(usable, value_mean - slope * code_mean, start)
