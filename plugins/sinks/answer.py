"""One answer in the making: its choices, the requests behind it, and what they used."""

from dataclasses import dataclass, field
from typing import Final

from msgspec import UNSET

from enginebay.flow import ChoiceFinished, Delta, Ended, Failure, PromptScored, Usage
from enginebay.hookspecs.sink import Part, Reply

from .alignment import Aligner, Shown
from .logprobs import Token, feed, prompt_shown
from .wire import ErrorBody, ErrorDetail, PromptDetails, UsageBody

FINISH_REASONS: Final = {
    "stop": "stop",
    "length": "length",
    "capacity": "length",
    "deadline": "abort",
    "cancelled": "abort",
    "slow_reader": "abort",
    "error": "abort",
}
"""The engine's reasons in the API's words. ``abort`` is what vLLM says for a request that
was taken back; ``error`` comes with an error instead and is never shown."""
TOOL_CALLS: Final = "tool_calls"


@dataclass(slots=True)
class Choice:
    """What is known of one choice of the answer."""

    index: int
    part: Part
    opened: bool = False
    """Its role or its echo has been sent."""
    called_tools: bool = False
    finish: ChoiceFinished | None = None
    aligner: Aligner[Token] | None = None

    def take(self, delta: Delta) -> None:
        """Note what a delta says about the choice as a whole."""
        if delta.tool_calls:
            self.called_tools = True
        if self.aligner is not None:
            self.aligner.add_text(delta.reasoning + delta.content)
            feed(self.aligner, delta.logprobs or ())

    @property
    def finish_reason(self) -> str:
        """In the API's words."""
        reason = self.finish.reason if self.finish else "error"
        if reason == "stop" and self.called_tools:
            return TOOL_CALLS
        return FINISH_REASONS[reason]


@dataclass
class Answer:
    """The choices of one reply, over all of its engine requests."""

    reply: Reply
    choices: list[Choice] = field(default_factory=list)
    usage: Usage = field(default_factory=lambda: Usage(prompt_tokens=0, completion_tokens=0))
    error: Failure | None = None

    def __post_init__(self) -> None:
        reply = self.reply
        own = Part(
            request_id=reply.request_id, echo=reply.echo, prompt_token_ids=reply.prompt_token_ids
        )
        parts = reply.parts or (own,)
        self.scores: dict[str, PromptScored] = {}
        self._echoes: dict[str, tuple[str, list[Shown[Token]]]] = {}
        self.parts = {part.request_id: part for part in parts}
        self._first = {part.request_id: i * reply.n for i, part in enumerate(parts)}
        self._open = set(self._first)
        for part in parts:
            for _ in range(reply.n):
                choice = Choice(len(self.choices), part)
                if reply.logprobs:
                    choice.aligner = Aligner(offset=len(part.echo or ""))
                self.choices.append(choice)

    def choice(self, event: Delta | ChoiceFinished) -> Choice:
        """The choice an event is about."""
        return self.choices[self._first[event.request_id] + event.index]

    def choices_of(self, request_id: str) -> list[Choice]:
        """The choices of one engine request."""
        first = self._first[request_id]
        return self.choices[first : first + self.reply.n]

    def score(self, event: PromptScored) -> None:
        """Keep a prompt's log-probabilities, and find its tokens in what is repeated."""
        part = self.parts[event.request_id]
        self.scores[event.request_id] = event
        if part.echo is None and not part.echo_tokens:
            return
        echo, shown = prompt_shown(event, part.echo)
        self._echoes[event.request_id] = echo, shown
        for choice in self.choices_of(event.request_id):
            if choice.aligner is not None:
                choice.aligner = Aligner(offset=len(echo))

    def echo(self, part: Part) -> tuple[str, list[Shown[Token]]]:
        """What is repeated in front of a part's choices, and its tokens if scored."""
        return self._echoes.get(part.request_id, (part.echo or "", []))

    def end(self, event: Ended) -> bool:
        """Add up a request that ended. True: it was the last, or it failed."""
        self._open.discard(event.request_id)
        self.usage = Usage(
            prompt_tokens=self.usage.prompt_tokens + event.usage.prompt_tokens,
            completion_tokens=self.usage.completion_tokens + event.usage.completion_tokens,
            cached_tokens=self.usage.cached_tokens + event.usage.cached_tokens,
        )
        self.error = self.error or event.error
        return not self._open or self.error is not None


def usage_body(usage: Usage) -> UsageBody:
    """Token counts in the API's words."""
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptDetails(cached_tokens=usage.cached_tokens),
    )


def failure_body(failure: Failure) -> ErrorBody:
    """A failure after the request was accepted."""
    code = "engine_failed" if failure.kind == "engine" else "request_failed"
    detail = ErrorDetail(
        message=failure.message,
        type="server_error",
        code=code,
        plugin=UNSET if failure.plugin is None else failure.plugin,
    )
    return ErrorBody(error=detail)
