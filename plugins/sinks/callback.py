"""The engine's own events, each handed to a function."""

from collections.abc import Callable
from typing import Any

import msgspec

from enginebay import hookimpl
from enginebay.flow import Ended, Event
from enginebay.hookspecs.sink import Reply, Sink, SinkContext, SinkKind

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to choose."""


class CallbackSink:
    """Calls ``deliver`` with each event, in the thread that offers it. It must return at
    once; what it raises ends the request."""

    def __init__(self, reply: Reply, deliver: Callable[[Any], None]) -> None:
        self._open = {part.request_id for part in reply.parts} or {reply.request_id}
        self._deliver = deliver

    def offer(self, event: Event) -> bool:
        """Hand it on; nothing is kept, so there is no bound."""
        self._deliver(event)
        if isinstance(event, Ended):
            self._open.discard(event.request_id)
        return True

    def drain(self) -> list[Any]:
        """Nothing waits here."""
        return []

    @property
    def closed(self) -> bool:
        """True after the terminal event was taken."""
        return not self._open


class CallbackKind:
    """Opens callbacks."""

    media_type: str | None = None

    def open(self, reply: Reply, deliver: Callable[[Any], None] | None = None) -> Sink:
        """:raises ValueError: no function was given"""
        if deliver is None:
            raise ValueError("the callback sink needs 'deliver', the function to call")
        return CallbackSink(reply, deliver)


@hookimpl
def enginebay_sink(options: Options, context: SinkContext) -> SinkKind:
    """Build the kind."""
    return CallbackKind()
