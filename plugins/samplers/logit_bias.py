"""Edit: adds a caller's bias to the logits of chosen tokens (the OpenAI field)."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from enginebay import hookimpl
from enginebay.flow import SamplingParams
from enginebay.hookspecs.sampler import Field, RowView, SamplerContext, Transform

from .entries import Places, array_of, numbers, places

CONTRACT = (1, 0)
LIMIT: Final = 100.0
"""At -LIMIT a token is banned, at +LIMIT it is forced."""
FORCED_GAP: Final = 1e4
"""How far forced tokens stand above all others: certain at any temperature, and yet
the others stay in play for a row whose forced tokens a grammar or min-tokens bans."""

MAX_DIGITS: Final = 20


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None of its own."""


class Biases(dict[int, float]):
    """Token id -> bias, and what is to be done about them, sorted out once."""

    @cached_property
    def added(self) -> tuple[Places, npt.NDArray[np.float32]]:
        """Token ids, and what is added to their logits."""
        some = {token_id: bias for token_id, bias in self.items() if abs(bias) < LIMIT}
        return np.array(list(some), np.int64), np.array(list(some.values()), np.float32)

    @cached_property
    def banned(self) -> Places:
        """Token ids at -LIMIT."""
        return np.array([each for each, bias in self.items() if bias == -LIMIT], np.int64)

    @cached_property
    def forced(self) -> Places:
        """Token ids at +LIMIT."""
        return np.array([each for each, bias in self.items() if bias == LIMIT], np.int64)


class LogitBias:
    """Owns ``logit_bias``: token id, as a number or its digits, -> bias."""

    fields = (
        Field(
            name="logit_bias",
            type="object",
            neutral={},
            doc="token id -> bias from -100 (never) to 100 (always)",
        ),
    )

    def parse(self, name: str, value: Any, vocab_size: int) -> Biases:
        """Token id -> bias."""
        return Biases((_token_id(key, vocab_size), _bias(key, bias)) for key, bias in value.items())

    def active(self, params: Mapping[str, Any], sampling: SamplingParams) -> bool:
        """Any bias at all."""
        return bool(params["logit_bias"])

    def edit(self, row: torch.Tensor, view: RowView) -> None:
        """Add, ban, force."""
        biases: Biases = view.params["logit_bias"]
        logits = array_of(row)
        added, by = biases.added
        logits[places(row, added)] += numbers(row, by)
        logits[places(row, biases.banned)] = -torch.inf
        if len(biases.forced):
            forced = places(row, biases.forced)
            kept = logits[forced]
            if kept.max() > -torch.inf:
                logits -= logits.max() - kept.max() + FORCED_GAP
                logits[forced] = kept


def _token_id(key: Any, vocab_size: int) -> int:
    digits = isinstance(key, str) and key.isascii() and key.removeprefix("-").isdigit()
    number = isinstance(key, int) and not isinstance(key, bool)
    if not number and not (digits and len(key) <= MAX_DIGITS):
        msg = f"{str(key)[:40]!r} is not a token id; keys are integers"
        raise ValueError(msg)
    token_id = int(key)
    if not 0 <= token_id < vocab_size:
        msg = f"token id {token_id} is outside the vocabulary (0 to {vocab_size - 1})"
        raise ValueError(msg)
    return token_id


def _bias(key: Any, bias: Any) -> float:
    wrong = isinstance(bias, bool) or not isinstance(bias, int | float)
    if wrong or not -LIMIT <= bias <= LIMIT:
        shown = repr(bias)[:40] if isinstance(bias, str | float) else type(bias).__name__
        msg = f"the bias of token {str(key)[:20]} is {shown}; it must be a number from -100 to 100"
        raise ValueError(msg)
    return float(bias)


@hookimpl
def enginebay_sampler(options: Options, context: SamplerContext) -> Transform:
    """Build it."""
    return LogitBias()
