"""Server-sent events in the shape of the OpenAI streams.

Chunks of one choice: its first delta carries the role (chat) or the echoed prompt, one
chunk carries its finish reason. After all finish reasons comes the usage chunk, if it
was asked for, then ``data: [DONE]``. An error after the start is one ``data:`` event
with an ``error`` object; neither a finish reason nor ``[DONE]`` follows it.

Framing: WHATWG HTML, *Server-sent events*.
"""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from enginebay import hookimpl
from enginebay.flow import ChoiceFinished, Delta, Ended, Event, PromptScored
from enginebay.hookspecs.sink import Reply, Sink, SinkContext, SinkKind

from .answer import Answer, Choice, failure_body
from .chat import ChatShape
from .completion import CompletionShape
from .wire import Envelope, Wire, encode

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of one stream."""

    max_buffer: Annotated[int, msgspec.Meta(ge=1)] = 65536
    """Bytes that may wait to be drained; past it ``offer`` says False."""


class SseSink:
    """One stream. A finish that takes the request back waits for its terminal event,
    which says whether it ends with ``abort`` or with an error."""

    def __init__(self, reply: Reply, max_buffer: int) -> None:
        self._answer = Answer(reply)
        chat = reply.kind == "chat"
        self._shape = ChatShape(self._answer) if chat else CompletionShape(self._answer)
        self._max_buffer = max_buffer
        self._lines: list[bytes] = []
        self._size = 0
        self._closed = False

    def offer(self, event: Event) -> bool:
        """Take an event unless ``max_buffer`` bytes wait already."""
        if self._size >= self._max_buffer:
            return False
        if self._closed:
            return True
        if isinstance(event, Delta):
            self._delta(event)
        elif isinstance(event, ChoiceFinished):
            self._finish(event)
        elif isinstance(event, PromptScored):
            self._answer.score(event)
        else:
            self._end(event)
        return True

    def drain(self) -> list[Any]:
        """Lines of the stream, each a ``bytes`` that ends an event."""
        lines, self._lines, self._size = self._lines, [], 0
        return lines

    @property
    def closed(self) -> bool:
        """True after the terminal event was taken."""
        return self._closed

    def _delta(self, event: Delta) -> None:
        choice = self._answer.choice(event)
        self._open(choice)
        choice.take(event)
        self._add(self._shape.delta(choice, event))

    def _finish(self, event: ChoiceFinished) -> None:
        choice = self._answer.choice(event)
        choice.finish = event
        if event.reason in ("stop", "length", "capacity", "deadline"):
            self._open(choice)
            self._add(self._shape.finished(choice, event))

    def _end(self, event: Ended) -> None:
        if not self._answer.end(event):
            return
        self._closed = True
        if self._answer.error is not None:
            self._add(failure_body(self._answer.error))
            return
        for choice in self._answer.choices:
            taken_back = choice.finish
            if taken_back and taken_back.reason in ("cancelled", "slow_reader", "error"):
                self._open(choice)
                self._add(self._shape.finished(choice, taken_back))
        if self._answer.reply.include_usage:
            self._add(self._shape.usage())
        self._append(b"data: [DONE]\n\n")

    def _open(self, choice: Choice) -> None:
        if not choice.opened:
            choice.opened = True
            self._add(self._shape.opened(choice))

    def _add(self, chunk: Envelope | Wire | None) -> None:
        if chunk is not None:
            self._append(b"data: %b\n\n" % encode(chunk))

    def _append(self, line: bytes) -> None:
        self._lines.append(line)
        self._size += len(line)


class SseKind:
    """Opens streams."""

    media_type: str | None = "text/event-stream"

    def __init__(self, options: Options) -> None:
        self._options = options

    def open(self, reply: Reply, deliver: Callable[[Any], None] | None = None) -> Sink:
        """:raises ValueError: unshaped events, or a function to call, are wanted"""
        if reply.kind == "events" or deliver is not None:
            raise ValueError("sse shapes chat and completion answers; use queue or callback")
        return SseSink(reply, self._options.max_buffer)


@hookimpl
def enginebay_sink(options: Options, context: SinkContext) -> SinkKind:
    """Build the kind."""
    return SseKind(options)
