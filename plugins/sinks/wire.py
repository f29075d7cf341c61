"""The bodies and chunks of the OpenAI API, as structs ready to encode.

Spec: OpenAI API reference, *Chat* and *Completions* (objects ``chat.completion``,
``chat.completion.chunk``, ``text_completion``). Extensions, absent unless asked for:
``reasoning_content``, ``token_ids``, ``prompt_token_ids``, ``prompt_logprobs``,
``stop_reason``.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """The base of everything sent; a field that is ``UNSET`` is left out."""


class ErrorDetail(Wire, frozen=True, kw_only=True):
    """What went wrong; the last five fields say who refused and why (promise P7)."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    plugin: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    limit: float | UnsetType = UNSET
    current: float | UnsetType = UNSET
    retry_after: float | UnsetType = UNSET


class ErrorBody(Wire, frozen=True, kw_only=True):
    """The body of every error, and the data of an error event."""

    error: ErrorDetail


class PromptDetails(Wire, frozen=True, kw_only=True):
    """How the prompt was computed."""

    cached_tokens: int


class UsageBody(Wire, frozen=True, kw_only=True):
    """Token counts; ``completion_tokens`` sums over the choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class ChatAlternative(Wire, frozen=True, kw_only=True):
    """One alternative at a position."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(Wire, frozen=True, kw_only=True):
    """A generated token; ``bytes`` are those it added to the text."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatAlternative]


class ChatLogprobs(Wire, frozen=True, kw_only=True):
    """Log-probabilities of a chat choice."""

    content: list[ChatToken]
    refusal: None = None


class TextLogprobs(Wire, frozen=True, kw_only=True):
    """Log-probabilities of a completion: four lists of equal length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class FunctionBody(Wire, frozen=True, kw_only=True):
    """A called function, or a piece of one."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCallBody(Wire, frozen=True, kw_only=True):
    """A tool call (no ``index``) or a piece of one (``id`` in the first alone)."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionBody


class Message(Wire, frozen=True, kw_only=True):
    """A whole answer, or what a chunk adds to it."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallBody] | UnsetType = UNSET


class ChatChoice(Wire, frozen=True, kw_only=True):
    """One choice: ``message`` in a body, ``delta`` in a chunk."""

    index: int
    message: Message | UnsetType = UNSET
    delta: Message | UnsetType = UNSET
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: tuple[int, ...] | list[int] | UnsetType = UNSET


class TextChoice(Wire, frozen=True, kw_only=True):
    """One choice of a completion, whole or in a chunk."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: tuple[int, ...] | list[int] | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET


class Envelope(Wire, frozen=True, kw_only=True):
    """A body or a chunk of either endpoint."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice] | list[TextChoice]
    usage: UsageBody | UnsetType | None = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET


encode = msgspec.json.Encoder().encode
