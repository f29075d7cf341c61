"""Linear layers as a walk sees them: weights, the rows that went in, and where those came from."""

from dataclasses import dataclass
from typing import Literal

import torch

from enginebay.hookspecs.model import Role


@dataclass(eq=False)
class Layer:
    """One linear layer, its weights in float32, and the rows that went into it."""

    name: str
    parts: tuple[str, ...]
    role: Role
    weight: torch.Tensor
    """[N, K], the parts stacked by rows"""
    bias: torch.Tensor | None
    rows: torch.Tensor
    """[T, K]"""
    sizes: tuple[int, ...]
    """Rows of the weight that each part has"""
    source: "Source | None" = None
    """What made the rows; ``None``: nothing that factors could be folded into."""
    factors: torch.Tensor | None = None
    """By which the source is to be divided, once the layer was smoothed."""

    def part(self, number: int) -> slice:
        """The rows of the weight that belong to one part."""
        return slice(sum(self.sizes[:number]), sum(self.sizes[: number + 1]))

    def drop(self) -> None:
        """Let go of rows and weights."""
        self.rows = self.weight = torch.empty(0)


@dataclass(eq=False)
class Source:
    """What a layer's rows came from, and so where the inverse of factors can go."""

    kind: Literal["norm", "values", "gated"]
    norm: str = ""
    """``norm``: the norm weight's name."""
    layer: Layer | None = None
    """``values`` and ``gated``: the layer whose last rows made the values, or the factor
    that isn't activated."""
    repeats: int = 1
    """``values``: query heads that share a KV head."""
    head_dim: int = 0
