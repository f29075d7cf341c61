"""Edit: penalties on tokens that have already appeared."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import torch

from enginebay import hookimpl
from enginebay.flow import SamplingParams
from enginebay.hookspecs.sampler import Field, RowView, SamplerContext, Transform

from .entries import array_of, distinct, numbers, places

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None of its own."""


class Penalties:
    """Owns ``repetition_penalty``, ``presence_penalty`` and ``frequency_penalty``.

    Repetition (Keskar et al., CTRL, arXiv 1909.05858) divides positive logits of tokens
    in prompt or output and multiplies the others. Then presence is taken off once, and
    frequency once for each time, for tokens of the output (the OpenAI fields).
    """

    fields = (
        Field(
            name="repetition_penalty",
            type="number",
            neutral=1.0,
            minimum=0.01,
            maximum=100.0,
            doc="above 1 discourages tokens of prompt and output, below 1 encourages them",
        ),
        Field(
            name="presence_penalty",
            type="number",
            neutral=0.0,
            minimum=-2.0,
            maximum=2.0,
            doc="taken off the logit of every token that the output holds",
        ),
        Field(
            name="frequency_penalty",
            type="number",
            neutral=0.0,
            minimum=-2.0,
            maximum=2.0,
            doc="taken off a token's logit for each time that the output holds it",
        ),
    )

    def parse(self, name: str, value: Any, vocab_size: int) -> Any:
        """As it is."""
        return value

    def active(self, params: Mapping[str, Any], sampling: SamplingParams) -> bool:
        """Any of the three."""
        return bool(
            params["repetition_penalty"] != 1.0
            or params["presence_penalty"]
            or params["frequency_penalty"]
        )

    def edit(self, row: torch.Tensor, view: RowView) -> None:
        """Repetition first, then presence and frequency."""
        logits = array_of(row)
        repetition = view.params["repetition_penalty"]
        if repetition != 1.0:
            prompt, before = distinct(tuple(view.prompt_ids))
            after = set(view.output_ids).difference(prompt)
            for seen in (places(row, before), places(row, after)):
                found = logits[seen]
                logits[seen] = found * repetition
                positive = found > 0
                logits[seen[positive]] = found[positive] / repetition
        presence = view.params["presence_penalty"]
        frequency = view.params["frequency_penalty"]
        if (presence or frequency) and view.output_ids:
            counts = Counter(view.output_ids)
            times = np.fromiter(counts.values(), np.float32, len(counts))
            logits[places(row, counts)] -= numbers(row, times) * frequency + presence


@hookimpl
def enginebay_sampler(options: Options, context: SamplerContext) -> Transform:
    """Build it."""
    return Penalties()
