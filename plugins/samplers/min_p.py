"""Shape: tokens whose probability is near enough to the best (Nguyen et al., 2407.01082)."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from enginebay import hookimpl
from enginebay.candidates import Candidates
from enginebay.flow import SamplingParams
from enginebay.hookspecs.sampler import Field, RowView, SamplerContext, Transform

from .narrowing import compiled, near, suits

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None of its own."""


class MinP:
    """Owns ``min_p``: keeps tokens of at least ``min_p`` times the best probability."""

    fields = (
        Field(
            name="min_p",
            type="number",
            neutral=0.0,
            minimum=0.0,
            maximum=1.0,
            doc="0 keeps all, 1 only the most likely and its equals",
        ),
    )

    def parse(self, name: str, value: Any, vocab_size: int) -> Any:
        """As it is."""
        return value

    def active(self, params: Mapping[str, Any], sampling: SamplingParams) -> bool:
        """Any bound."""
        return bool(params["min_p"] > 0)

    def shape(self, candidates: Candidates, view: RowView) -> Candidates:
        """A ratio of probabilities is a difference of logits: no softmax is needed."""
        least = math.log(view.params["min_p"])
        if suits(candidates):
            return near(candidates, least)
        return candidates.where(candidates.logits - candidates.logits.max() >= least)


@hookimpl
def enginebay_sampler(options: Options, context: SamplerContext) -> Transform:
    """Build it, compiled: the first request does not wait for that."""
    compiled()
    return MinP()
