"""Edit: no end-of-sequence or stop token before the request's minimum is reached."""

from collections.abc import Mapping
from typing import Any

import msgspec
import torch

from enginebay import hookimpl
from enginebay.flow import SamplingParams
from enginebay.hookspecs.sampler import Field, RowView, SamplerContext, Transform

from .entries import array_of, places

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None of its own."""


class MinTokens:
    """Honours ``min_tokens``, a field of the core, which ignores stop strings meanwhile."""

    fields: tuple[Field, ...] = ()

    def parse(self, name: str, value: Any, vocab_size: int) -> Any:
        """It owns no field."""
        msg = f"min-tokens owns no field {name!r}"
        raise ValueError(msg)

    def active(self, params: Mapping[str, Any], sampling: SamplingParams) -> bool:
        """The request has a minimum."""
        return sampling.min_tokens > 0

    def edit(self, row: torch.Tensor, view: RowView) -> None:
        """Ban every token that would end the sequence too early."""
        if len(view.output_ids) < view.sampling.min_tokens:
            # A checkpoint may name an end token beyond the rows of its head.
            ends = [token_id for token_id in view.end_ids if token_id < len(row)]
            array_of(row)[places(row, ends)] = -torch.inf


@hookimpl
def enginebay_sampler(options: Options, context: SamplerContext) -> Transform:
    """Build it."""
    return MinTokens()
