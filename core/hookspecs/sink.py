"""Sink: one request's events become what its reader gets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ..flow import Event, Frozen
from .markers import hookspec


class Part(Frozen, frozen=True, kw_only=True):
    """One engine request of an answer that collects several (a list of prompts)."""

    request_id: str
    echo: str | None = None
    """Text of the prompt to repeat in front of its choices."""
    echo_tokens: bool = False
    """Repeat the prompt, whose text comes with ``PromptScored``: it was token ids.
    Where a ``PromptScored`` comes at all, it comes before the first delta."""
    prompt_token_ids: tuple[int, ...] = ()


class Reply(Frozen, frozen=True, kw_only=True):
    """The shape a reader asked for."""

    request_id: str
    kind: Literal["chat", "completion", "events"] = "events"
    """``events``: the engine's own events, unshaped."""
    model: str = ""
    created: int = 0
    """Unix seconds."""
    n: int = 1
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    echo: str | None = None
    """Text of the prompt to repeat in front of a completion."""
    prompt_token_ids: tuple[int, ...] = ()
    return_token_ids: bool = False
    prompt_logprobs: bool = False
    """Report ``PromptScored`` beside the choices."""
    parts: tuple[Part, ...] = ()
    """The engine requests of one answer, ``n`` choices each: choice ``j`` belongs to
    ``parts[j // n]``. Empty: the one request ``request_id``."""


class Sink(Protocol):
    """The reader's end of one request. Called from the transport's thread alone."""

    def offer(self, event: Event) -> bool:
        """Take an event; never blocks.

        False: past its bound, nothing was taken, offer it again when it has drained.
        What is not taken is not acknowledged, so the core stalls the sequence.
        """

    def drain(self) -> list[Any]:
        """What the reader can have now: bytes for ``sse`` and ``json``."""

    @property
    def closed(self) -> bool:
        """True after the terminal event was taken."""


class SinkKind(Protocol):
    """Opens sinks of one kind."""

    @property
    def media_type(self) -> str | None:
        """For HTTP; ``None`` when the sink gives no bytes."""

    def open(self, reply: Reply, deliver: Callable[[Any], None] | None = None) -> Sink:
        """``deliver``: for ``callback`` and ``queue``, where each item goes."""


@dataclass(frozen=True)
class SinkContext:
    """What a sink kind is built with: nothing yet."""


@hookspec(firstresult=True)
def enginebay_sink(options: Any, context: SinkContext) -> SinkKind:  # type: ignore[empty-body]
    """Build a kind of sink. Called once for each name in the stack's ``sinks``.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: nothing yet
    """
