"""Row-wise ops in plain torch, the same bits for a row wherever it stands.

They use only what torch computes alike for every element: sums, products, quotients,
square roots (exact by IEEE 754) and ``exp``, whose vectors and tails agree. ``silu``,
``sigmoid``, ``exp2`` and float32 powers do not have that property (their tails come
from the C library), and reductions are spelled out as additions of halves.
"""

import torch
import torch.nn.functional as F


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows of a table: ids int64 [T], weight [V, H] -> [T, H]."""
    return F.embedding(ids, weight)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis: [R, N] -> [R, N].

    Zhang and Sennrich, arXiv 1910.07467.
    """
    mean = sum_last(x * x) / x.shape[-1]
    return x * (1.0 / torch.sqrt(mean + eps)) * weight


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(first half) * second half: [T, 2 I] -> [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate / (1.0 + torch.exp(-gate)) * up


def sum_last(x: torch.Tensor) -> torch.Tensor:
    """Sums over the last axis, kept: elementwise additions of halves, log2(N) of them."""
    width = 1 << max(0, x.shape[-1] - 1).bit_length()
    x = F.pad(x, (0, width - x.shape[-1]))
    while width > 1:
        width //= 2
        x = x[..., :width] + x[..., width : 2 * width]
    return x
