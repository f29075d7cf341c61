"""Shape: only the k most likely tokens (Fan et al., arXiv 1805.04833)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from enginebay import hookimpl
from enginebay.candidates import Candidates
from enginebay.flow import SamplingParams
from enginebay.hookspecs.sampler import Field, RowView, SamplerContext, Transform

from .narrowing import compiled, leaders, suits

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None of its own."""


class TopK:
    """Owns ``top_k``. 0, -1 and whatever reaches the vocabulary's size keep all."""

    fields = (
        Field(
            name="top_k",
            type="integer",
            neutral=0,
            minimum=-1,
            doc="candidates to keep; 0 and -1: all",
        ),
    )

    def parse(self, name: str, value: Any, vocab_size: int) -> int:
        """0 for every way to say "all"."""
        return value if 0 < value < vocab_size else 0

    def active(self, params: Mapping[str, Any], sampling: SamplingParams) -> bool:
        """Any limit."""
        return bool(params["top_k"] > 0)

    def greedy(self, params: Mapping[str, Any]) -> bool:
        """One candidate."""
        return bool(params["top_k"] == 1)

    def shape(self, candidates: Candidates, view: RowView) -> Candidates:
        """The best; of equal logits at the edge the lower ids stay."""
        count = view.params["top_k"]
        if candidates.ordered or not suits(candidates):
            return candidates.best(count)
        return leaders(candidates, count)


@hookimpl
def enginebay_sampler(options: Options, context: SamplerContext) -> Transform:
    """Build it, compiled: the first request does not wait for that."""
    compiled()
    return TopK()
