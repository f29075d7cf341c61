"""Edit: adds a caller's bias to the logits of chosen tokens (the OpenAI field)."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import torch

from enginebay import hookimpl
from enginebay.flow import SamplingParams
from enginebay.hookspecs.sampler import Field, RowView, SamplerContext, Transform

CONTRACT = (1, 0)
LIMIT: Final = 100.0
"""At -LIMIT a token is banned, at +LIMIT it is forced."""
FORCED_GAP: Final = 1e4
"""How far forced tokens stand above all others: certain at any temperature, and yet
the others stay in play for a row whose forced tokens a grammar or min-tokens bans."""

MAX_DIGITS: Final = 20


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None of its own."""


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

    def parse(self, name: str, value: Any, vocab_size: int) -> dict[int, float]:
        """Token id -> bias."""
        return {_token_id(key, vocab_size): _bias(key, bias) for key, bias in value.items()}

    def active(self, params: Mapping[str, Any], sampling: SamplingParams) -> bool:
        """Any bias at all."""
        return bool(params["logit_bias"])

    def edit(self, row: torch.Tensor, view: RowView) -> None:
        """Add, ban, force."""
        biases: dict[int, float] = view.params["logit_bias"]
        banned = [token_id for token_id, bias in biases.items() if bias == -LIMIT]
        forced = [token_id for token_id, bias in biases.items() if bias == LIMIT]
        added = [token_id for token_id, bias in biases.items() if abs(bias) < LIMIT]
        row[added] += row.new_tensor([biases[token_id] for token_id in added])
        row[banned] = -torch.inf
        kept = row[forced]
        if forced and kept.max() > -torch.inf:
            row -= row.max() - kept.max() + FORCED_GAP
            row[forced] = kept


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
