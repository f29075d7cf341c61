"""Answers as programs get them: the events of a request, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import EnginebayError
from .flow import (
    Accepted,
    ChoiceFinished,
    Delta,
    Ended,
    FinishReason,
    Frozen,
    PromptScored,
    TokenLogprob,
    Usage,
)

if TYPE_CHECKING:
    from .flow import Event


class Completion(Frozen, frozen=True, kw_only=True):
    """One choice of an answer."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


class Output(Frozen, frozen=True, kw_only=True):
    """The answer to one prompt."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[Completion, ...]
    usage: Usage
    seed: int
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.outputs[0].text


class RequestFailed(EnginebayError):
    """A request ended with an error event."""


class Gathered:
    """The events of one request, put together."""

    def __init__(self, num_choices: int) -> None:
        self._texts: list[list[str]] = [[] for _ in range(num_choices)]
        self._ids: list[list[int]] = [[] for _ in range(num_choices)]
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in range(num_choices)]
        self._ends: dict[int, ChoiceFinished] = {}
        self._prompt: PromptScored | None = None
        self._end: Ended | None = None

    def take(self, event: Event) -> bool:
        """Add an event; true when it was the last."""
        match event:
            case Delta():
                self._texts[event.index].append(event.content)
                self._ids[event.index].extend(event.token_ids)
                self._logprobs[event.index].extend(event.logprobs or ())
            case ChoiceFinished():
                self._ends[event.index] = event
            case PromptScored():
                self._prompt = event
            case Ended():
                self._end = event
        return self._end is not None

    def output(self, accepted: Accepted) -> Output:
        """:raises RequestFailed: the request ended with an error"""
        if self._end is None or self._end.error is not None:
            message = self._end.error.message if self._end and self._end.error else "unfinished"
            raise RequestFailed(message)
        return Output(
            request_id=accepted.request_id,
            prompt_token_ids=accepted.prompt_token_ids,
            outputs=tuple(self._choice(index) for index in sorted(self._ends)),
            usage=self._end.usage,
            seed=accepted.seed,
            prompt_logprobs=self._prompt.logprobs if self._prompt else None,
        )

    def _choice(self, index: int) -> Completion:
        end = self._ends[index]
        return Completion(
            index=index,
            text="".join(self._texts[index]),
            token_ids=tuple(self._ids[index]),
            finish_reason=end.reason,
            stop=end.stop,
            logprobs=tuple(self._logprobs[index]) or None,
        )
