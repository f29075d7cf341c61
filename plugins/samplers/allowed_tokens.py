"""Edit: only the tokens that the request lists may be drawn."""

from collections.abc import Mapping
from typing import Any

import msgspec
import torch

from enginebay import hookimpl
from enginebay.flow import SamplingParams
from enginebay.hookspecs.sampler import Field, RowView, SamplerContext, Transform

from .entries import array_of, distinct, places

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None of its own."""


class AllowedTokens:
    """Owns ``allowed_token_ids``."""

    fields = (
        Field(
            name="allowed_token_ids",
            type="array",
            neutral=None,
            doc="the only token ids that may be drawn; the end of the sequence must be among "
            "them if the answer may end by itself",
        ),
    )

    def parse(self, name: str, value: Any, vocab_size: int) -> tuple[int, ...]:
        """Ascending, each once."""
        if not value:
            msg = "it is empty, so that nothing could be drawn; list token ids or leave it out"
            raise ValueError(msg)
        for token_id in value:
            wrong = isinstance(token_id, bool) or not isinstance(token_id, int)
            if wrong or not 0 <= token_id < vocab_size:
                msg = f"it must hold token ids from 0 to {vocab_size - 1} only"
                raise ValueError(msg)
        return tuple(sorted(set(value)))

    def active(self, params: Mapping[str, Any], sampling: SamplingParams) -> bool:
        """The request has a list."""
        return params["allowed_token_ids"] is not None

    def edit(self, row: torch.Tensor, view: RowView) -> None:
        """Ban all others."""
        logits = array_of(row)
        allowed = places(row, distinct(view.params["allowed_token_ids"])[1])
        kept = logits[allowed]
        logits[:] = -torch.inf
        logits[allowed] = kept


@hookimpl
def enginebay_sampler(options: Options, context: SamplerContext) -> Transform:
    """Build it."""
    return AllowedTokens()
