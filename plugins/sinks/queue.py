"""The engine's own events, through a bounded queue, for a reader in another thread."""

import queue
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec

from enginebay import hookimpl
from enginebay.flow import Ended, Event
from enginebay.hookspecs.sink import Reply, SinkContext, SinkKind

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of one queue."""

    max_events: Annotated[int, msgspec.Meta(ge=1)] = 1024
    """Events that may wait for their reader; past it ``offer`` says False."""


class QueueSink:
    """One request's events. ``offer`` is for the transport's thread, the rest for any."""

    def __init__(self, reply: Reply, max_events: int) -> None:
        self._open = {part.request_id for part in reply.parts} or {reply.request_id}
        self._queue: queue.Queue[Event] = queue.Queue(max_events)
        self._closed = False

    def offer(self, event: Event) -> bool:
        """Take an event unless ``max_events`` wait already."""
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            return False
        if isinstance(event, Ended):
            self._open.discard(event.request_id)
            self._closed = not self._open
        return True

    def drain(self) -> list[Any]:
        """The events that wait, oldest first."""
        events: list[Any] = []
        try:
            while True:
                events.append(self._queue.get_nowait())
        except queue.Empty:
            return events

    def get(self, timeout: float | None = None) -> Event:
        """The next event.

        :param timeout: seconds to wait; ``None``: for ever
        :raises queue.Empty: none came in time
        """
        return self._queue.get(timeout=timeout)

    def __iter__(self) -> Iterator[Event]:
        """Events to the end of the request; each waits until it is there."""
        while not (self._closed and self._queue.empty()):
            yield self._queue.get()

    @property
    def closed(self) -> bool:
        """True after the terminal event was taken."""
        return self._closed


class QueueKind:
    """Opens queues."""

    media_type: str | None = None

    def __init__(self, options: Options) -> None:
        self._options = options

    def open(self, reply: Reply, deliver: Callable[[Any], None] | None = None) -> QueueSink:
        """Events are read from the sink itself.

        :raises ValueError: ``deliver`` was given, which is for ``callback``
        """
        if deliver is not None:
            raise ValueError("a queue is read from its sink; for a function use 'callback'")
        return QueueSink(reply, self._options.max_events)


@hookimpl
def enginebay_sink(options: Options, context: SinkContext) -> SinkKind:
    """Build the kind."""
    return QueueKind(options)
