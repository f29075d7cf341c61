"""Shape: temperature, and greedy decoding at its lower end."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import torch

from enginebay import hookimpl
from enginebay.candidates import Candidates
from enginebay.flow import SamplingParams
from enginebay.hookspecs.sampler import Field, RowView, SamplerContext, Transform

from .narrowing import suits
from .tops import scaled

CONTRACT = (1, 0)
GREEDY_BELOW: Final = 1e-5
"""From here up the scaled differences of any usable logits stay finite in float32."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None of its own."""


class Temperature:
    """Owns ``temperature``: logits are divided by it; below 1e-5 the best one is taken."""

    fields = (
        Field(
            name="temperature",
            type="number",
            neutral=1.0,
            minimum=0.0,
            maximum=100.0,
            doc="0 takes the most likely token; 1 leaves the model's distribution as it is",
        ),
    )

    def parse(self, name: str, value: Any, vocab_size: int) -> Any:
        """As it is."""
        return value

    def active(self, params: Mapping[str, Any], sampling: SamplingParams) -> bool:
        """Other than 1."""
        return bool(params["temperature"] != 1.0)

    def greedy(self, params: Mapping[str, Any]) -> bool:
        """Below the smallest temperature that is scaled by."""
        return bool(params["temperature"] < GREEDY_BELOW)

    def shape(self, candidates: Candidates, view: RowView) -> Candidates:
        """Scale in float32, the maximum taken off first, so that nothing overflows."""
        if self.greedy(view.params):
            return candidates.first()
        factor = 1.0 / view.params["temperature"]
        if not suits(candidates):
            return candidates.scaled(factor)
        logits, tops = scaled(candidates.logits.contiguous().numpy(), factor)
        ids, ordered = candidates.ids, candidates.ordered
        return Candidates(torch.from_numpy(logits), ids, ordered=ordered, tops=tops)


@hookimpl
def enginebay_sampler(options: Options, context: SamplerContext) -> Transform:
    """Build it, compiled: the first request does not wait for that."""
    scaled(np.zeros(1, dtype=np.float32), 1.0)
    return Temperature()
