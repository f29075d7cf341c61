"""Admission: a prompt and at least one token of its answer fit into the context."""

from typing import Final

import msgspec

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.flow import Refusal
from enginebay.hookspecs.admission import AdmissionContext, Ask, Load

from .bounds import require_least

CONTRACT = (1, 0)
ID_CHARS: Final = 4
"""Characters that ``Ask.prompt_chars`` counts for a token given as an id."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For both chains: ``budget`` judges the exact length, ``door`` what could never fit,
    before time is spent on tokenizing it."""

    min_output_tokens: int = 1
    """Tokens of the context that a prompt must leave for the answer; at least 1."""
    max_chars_per_token: int = 0
    """Characters of text that a token stands for at most; read at the door. 0: as many
    as the vocabulary's longest token has, which for the usual tokenizers is a run of 64
    to 128 spaces, so not even such a run is refused wrongly. Raise it for a chat template
    that leaves out much of what it is given."""


class ContextLength:
    """Refuses, for good, a prompt that leaves no room for an answer.

    A prompt of exactly ``max_model_len`` tokens is refused too: nothing could follow.
    """

    def __init__(self, name: str, max_model_len: int, min_output: int, chars: int) -> None:
        """:param chars: that a token may stand for; 0: unknown, so the door judges nothing"""
        self._name = name
        self._max_model_len = max_model_len
        self._min_output = min_output
        self._longest = max_model_len - min_output
        self._max_chars = self._longest * chars

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        length = ask.num_prompt_tokens
        if length is None:
            return self._text(ask.prompt_chars)
        if length <= self._longest:
            return None
        return self._refusal(f"{length} tokens", self._max_model_len, length)

    def release(self, request_id: str) -> None:
        """Nothing is reserved."""

    def _text(self, chars: int) -> Refusal | None:
        """At the door: too long even if every token were the longest there is."""
        if not self._max_chars or chars <= self._max_chars:
            return None
        told = f"{chars} characters, more than {self._longest} tokens can stand for"
        return self._refusal(told, self._max_chars, chars)

    def _refusal(self, told: str, limit: int, current: int) -> Refusal:
        return Refusal(
            plugin=self._name,
            reason="context_length_exceeded",
            kind="invalid",
            message=(
                f"the prompt has {told}, and together with at least "
                f"{self._min_output} of the answer it must fit into the context of "
                f"{self._max_model_len} tokens: shorten it to {self._longest} tokens or fewer"
            ),
            limit=limit,
            current=current,
            param="prompt",
        )


@hookimpl
def enginebay_admission(options: Options, context: AdmissionContext) -> ContextLength:
    """Build it for the engine's context length and vocabulary."""
    limit = context.limits.max_model_len
    if not 1 <= options.min_output_tokens < limit:
        msg = (
            f"{context.name}: min_output_tokens is {options.min_output_tokens}; "
            f"it must be 1 or more and below max_model_len, {limit}"
        )
        raise StackError(msg)
    require_least(context, options, 0, "max_chars_per_token")
    chars = options.max_chars_per_token or context.longest_token
    return ContextLength(
        context.name, limit, options.min_output_tokens, max(chars, ID_CHARS) if chars else 0
    )
