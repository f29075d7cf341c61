"""Admission: a prompt and at least one token of its answer fit into the context."""

import msgspec

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.flow import Refusal
from enginebay.hookspecs.admission import AdmissionContext, Ask, Load

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For the ``budget`` chain; at the door the prompt's length is not known yet."""

    min_output_tokens: int = 1
    """Tokens of the context that a prompt must leave for the answer; at least 1."""


class ContextLength:
    """Refuses, for good, a prompt that leaves no room for an answer.

    A prompt of exactly ``max_model_len`` tokens is refused too: nothing could follow.
    """

    def __init__(self, name: str, max_model_len: int, min_output_tokens: int) -> None:
        self._name = name
        self._max_model_len = max_model_len
        self._min_output = min_output_tokens

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        """Admit where the length is unknown: the door can't judge it."""
        length = ask.num_prompt_tokens
        longest = self._max_model_len - self._min_output
        if length is None or length <= longest:
            return None
        return Refusal(
            plugin=self._name,
            reason="context_length_exceeded",
            kind="invalid",
            message=(
                f"the prompt has {length} tokens, and together with at least "
                f"{self._min_output} of the answer it must fit into the context of "
                f"{self._max_model_len} tokens: shorten it to {longest} tokens or fewer"
            ),
            limit=self._max_model_len,
            current=length,
            param="prompt",
        )

    def release(self, request_id: str) -> None:
        """Nothing is reserved."""


@hookimpl
def enginebay_admission(options: Options, context: AdmissionContext) -> ContextLength:
    """Build it for the engine's context length."""
    limit = context.limits.max_model_len
    if not 1 <= options.min_output_tokens < limit:
        msg = (
            f"{context.name}: min_output_tokens is {options.min_output_tokens}; "
            f"it must be 1 or more and below max_model_len, {limit}"
        )
        raise StackError(msg)
    return ContextLength(context.name, limit, options.min_output_tokens)
