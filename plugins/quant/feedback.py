"""Rounding with error feedback: a weight's error is made up for by those still to come.

Columns are rounded one after another; what each loses is spread over the later columns
so that the layer's output on calibration rows changes least (GPTQ: Frantar et al.,
arXiv 2210.17323). Scales stay as they were, only the choice between codes changes.
"""

from typing import Final

import torch

from .w8a8 import GREATEST, channel_scales

DAMPING: Final = 0.01
"""Added to the diagonal, as a share of its mean: directions that no row has seen."""
BLOCK: Final = 64
"""Columns after which the rest of the weight is brought up to date at once."""


def fed_back(weight: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes int8 [N, K], scales float32 [N]) of a weight, for rows like these.

    :param weight: float32 [N, K]; changed
    :param rows: float32 [T, K], as the layer will get them
    """
    scales = channel_scales(weight)
    spreads = inverse_root(rows)
    codes = torch.empty(weight.T.shape, dtype=torch.int8)
    for start in range(0, weight.shape[1], BLOCK):
        end = min(start + BLOCK, weight.shape[1])
        block = weight[:, start:end].T.contiguous()
        errors = torch.empty_like(block)
        for place in range(end - start):
            column = start + place
            code = torch.round(block[place] / scales).clamp_(-GREATEST, GREATEST)
            codes[column] = code.to(torch.int8)
            errors[place] = (block[place] - code * scales) / spreads[column, column]
            block[place + 1 :] -= spreads[column, column + 1 : end].unsqueeze(1) * errors[place]
        weight[:, end:] -= errors.T @ spreads[start:end, end:]
    return codes.T.contiguous(), scales


def inverse_root(rows: torch.Tensor) -> torch.Tensor:
    """The upper Cholesky factor [K, K] of the inverse of rows' damped second moments."""
    moments = rows.T @ rows
    diagonal = moments.diagonal()
    diagonal += DAMPING * diagonal.mean().clamp_min(1e-10)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments))
    return torch.linalg.cholesky(inverse, upper=True)
