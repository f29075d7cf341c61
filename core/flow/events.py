"""What comes out: the events of a request."""

from typing import Literal

from .frozen import FinishReason, Frozen, TokenIds


class Alternative(Frozen, frozen=True, kw_only=True):
    """One vocabulary entry and its log-probability (natural logarithm)."""

    token_id: int
    logprob: float
    text: str = ""
    data: bytes = b""
    """The token's own UTF-8 bytes, which may be part of a character."""
    rank: int = 0
    """1 is the most likely; 0 when not computed."""


class TokenLogprob(Frozen, frozen=True, kw_only=True):
    """A chosen token, its log-probability, and the best alternatives, best first."""

    token: Alternative
    top: tuple[Alternative, ...] = ()


class ToolCallDelta(Frozen, frozen=True, kw_only=True):
    """A piece of a tool call: ``id`` and ``name`` once, then argument text."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Delta(Frozen, frozen=True, kw_only=True, tag="delta"):
    """New tokens of one choice, as its reader sees them.

    ``content`` may be empty while bytes of a character or the beginning of a stop
    string are held back; ``token_ids`` are reported in the step that drew them.
    """

    request_id: str
    index: int
    token_ids: TokenIds = ()
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    num_generated: int = 0


class PromptScored(Frozen, frozen=True, kw_only=True, tag="prompt"):
    """Prompt log-probabilities, one entry a prompt token; the first is ``None``."""

    request_id: str
    logprobs: tuple[TokenLogprob | None, ...]
    token_ids: TokenIds = ()
    first: bytes = b""
    """The first prompt token's own UTF-8 bytes, which no entry carries."""


class ChoiceFinished(Frozen, frozen=True, kw_only=True, tag="finished"):
    """A choice ended; no more deltas of it follow."""

    request_id: str
    index: int
    reason: FinishReason
    stop: str | int | None = None
    """The stop string or token id that ended it."""
    message: str = ""


class Usage(Frozen, frozen=True, kw_only=True):
    """Token counts of a request; ``completion_tokens`` sums over its choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    num_preemptions: int = 0


class Failure(Frozen, frozen=True, kw_only=True):
    """An error as a caller may see it: no class names, paths or tracebacks."""

    message: str
    kind: Literal["request", "engine"] = "request"
    plugin: str | None = None


class Ended(Frozen, frozen=True, kw_only=True, tag="ended"):
    """The one terminal event of an accepted request (promise P2)."""

    request_id: str
    usage: Usage
    error: Failure | None = None


Event = Delta | PromptScored | ChoiceFinished | Ended


class EventBatch(Frozen, frozen=True, kw_only=True):
    """All events of one step for one client: the reader wakes once a step."""

    step: int
    """The step whose results it carries. Events that come of no results (a cancel, say)
    carry the step committed last, -1 before the first."""
    time: float
    events: tuple[Event, ...]
