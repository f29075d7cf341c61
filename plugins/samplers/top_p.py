"""Shape: the smallest set of likely tokens that carries a mass (Holtzman et al., 1904.09751)."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import torch

from enginebay import hookimpl
from enginebay.candidates import Candidates
from enginebay.flow import SamplingParams
from enginebay.hookspecs.sampler import Field, RowView, SamplerContext, Transform

from .narrowing import compiled, nucleus, suits

CONTRACT = (1, 0)
HEAD: Final = 256
"""Logits put in order at first: where they carry the mass, the others need no order."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None of its own."""


class TopP:
    """Owns ``top_p``: the likeliest tokens whose probabilities reach it, the last included.

    0 is refused: it names no set, and engines disagree on what it would mean.
    """

    fields = (
        Field(
            name="top_p",
            type="number",
            neutral=1.0,
            minimum=0.0,
            maximum=1.0,
            exclusive_minimum=True,
            doc="probability mass to keep; 1 keeps all; use temperature 0 for the best token",
        ),
    )

    def parse(self, name: str, value: Any, vocab_size: int) -> Any:
        """As it is."""
        return value

    def active(self, params: Mapping[str, Any], sampling: SamplingParams) -> bool:
        """Any bound."""
        return bool(params["top_p"] < 1.0)

    def shape(self, candidates: Candidates, view: RowView) -> Candidates:
        """Float32 weights, summed without rounding; of equal logits the lower ids come first."""
        if suits(candidates):
            return nucleus(candidates, view.params["top_p"])
        weights = torch.exp(candidates.logits - candidates.logits.max())
        wanted = view.params["top_p"] * float(weights.sum(dtype=torch.float64))
        values = candidates.largest(HEAD)
        masses = _masses(values)
        if float(masses[-1]) < wanted:
            values = candidates.largest(len(candidates))
            masses = _masses(values)
        # Summed in another order, the masses may end a rounding below what is wanted.
        last = min(int(torch.searchsorted(masses, wanted)), len(values) - 1)
        edge = float(values[last])
        return candidates.cut(edge, int((values[: last + 1] == edge).sum()))


def _masses(values: torch.Tensor) -> torch.Tensor:
    """float64 [C]: weight of each logit and all before it; the largest weighs 1."""
    return torch.exp(values - values[0]).cumsum(0, dtype=torch.float64)


@hookimpl
def enginebay_sampler(options: Options, context: SamplerContext) -> Transform:
    """Build it, compiled: the first request does not wait for that."""
    compiled()
    return TopP()
