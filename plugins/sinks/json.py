"""A whole answer as one JSON body, in the shape of the OpenAI API."""

from collections.abc import Callable
from typing import Any

import msgspec

from enginebay import hookimpl
from enginebay.flow import ChoiceFinished, Delta, Ended, Event, PromptScored
from enginebay.hookspecs.sink import Reply, Sink, SinkContext, SinkKind

from .answer import Answer, failure_body
from .chat import ChatShape
from .completion import CompletionShape
from .record import Record
from .wire import encode

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to choose."""


class JsonSink:
    """Collects an answer. It has no bound of its own: ``max_tokens`` times ``n`` is one,
    and nothing is written before the end."""

    def __init__(self, reply: Reply) -> None:
        self._answer = Answer(reply)
        chat = reply.kind == "chat"
        self._shape = ChatShape(self._answer) if chat else CompletionShape(self._answer)
        self._records = [Record() for _ in self._answer.choices]
        self._body: bytes | None = None
        self._closed = False

    def offer(self, event: Event) -> bool:
        """Always takes it."""
        if self._closed:
            return True
        if isinstance(event, Delta):
            choice = self._answer.choice(event)
            choice.take(event)
            self._records[choice.index].add(event)
        elif isinstance(event, ChoiceFinished):
            self._answer.choice(event).finish = event
        elif isinstance(event, PromptScored):
            self._answer.score(event)
        else:
            self._end(event)
        return True

    def drain(self) -> list[Any]:
        """The body, once; an error object if the request failed."""
        body, self._body = self._body, None
        return [] if body is None else [body]

    @property
    def closed(self) -> bool:
        """True after the terminal event was taken."""
        return self._closed

    def _end(self, event: Ended) -> None:
        if not self._answer.end(event):
            return
        self._closed = True
        error = self._answer.error
        self._body = encode(
            self._shape.body(self._records) if error is None else failure_body(error)
        )


class JsonKind:
    """Opens collectors."""

    media_type: str | None = "application/json"

    def open(self, reply: Reply, deliver: Callable[[Any], None] | None = None) -> Sink:
        """:raises ValueError: unshaped events, or a function to call, are wanted"""
        if reply.kind == "events" or deliver is not None:
            raise ValueError("json shapes chat and completion answers; use queue or callback")
        return JsonSink(reply)


@hookimpl
def enginebay_sink(options: Options, context: SinkContext) -> SinkKind:
    """Build the kind."""
    return JsonKind()
