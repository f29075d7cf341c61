"""One HTTP answer in the making: events wait here until its sink takes them."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from enginebay.flow import Delta, Ended, Event, Failure, Usage, Written
from enginebay.hookspecs.client import EngineClient
from enginebay.hookspecs.sink import Sink


class Exchange:
    """Lives on the event loop; only ``bind`` is called from a submitting thread."""

    def __init__(self, abort: Callable[[], None] | None) -> None:
        self.client: EngineClient | None = None
        self.ids: tuple[str, ...] = ()
        """Of its engine requests."""
        self.gone = False
        """Nobody reads it any more."""
        self.failure: Failure | None = None
        self.writing_since: float | None = None
        """Monotonic seconds; ``None``: nothing waits to be written."""
        self._abort = abort
        self._events: deque[Event] = deque()
        self._sink: Sink | None = None
        self._awake = asyncio.Event()
        self._generated: dict[tuple[str, int], int] = {}
        self._running: set[str] = set()

    def bind(self, client: EngineClient, ids: tuple[str, ...]) -> None:
        """Name what it is about, before anything is submitted."""
        self.client = client
        self.ids = ids
        self._running = set(ids)

    def open(self, sink: Sink) -> None:
        """Everything was accepted: events, early ones included, go to ``sink``."""
        self._sink = sink

    def push(self, event: Event) -> None:
        """Keep an event; ``wake`` says that the step's events are complete."""
        self._events.append(event)

    def wake(self) -> None:
        """Let the writer look."""
        self._awake.set()

    async def wait(self) -> None:
        """Until there may be something to write."""
        await self._awake.wait()
        self._awake.clear()

    def pump(self) -> bytes:
        """What can be written now. Events the sink has no room for stay."""
        sink = self._sink
        if sink is None:
            return b""
        out: list[bytes] = []
        while self._events and sink.offer(self._events[0]):
            event = self._events.popleft()
            if isinstance(event, Delta):
                self._generated[event.request_id, event.index] = event.num_generated
            elif isinstance(event, Ended):
                self._running.discard(event.request_id)
                self.failure = self.failure or event.error
        out += sink.drain()
        return b"".join(out)

    def written(self) -> tuple[Written, ...]:
        """What has been written since the last call, one entry a choice."""
        now = time.monotonic()
        report = tuple(
            Written(request_id=request_id, index=index, num_tokens=count, time=now)
            for (request_id, index), count in self._generated.items()
        )
        self._generated.clear()
        return report

    @property
    def closed(self) -> bool:
        """Whether the sink has everything."""
        return self._sink is not None and self._sink.closed

    @property
    def ended(self) -> bool:
        """Whether every engine request has had its terminal event."""
        return not self._running

    def fail(self, failure: Failure) -> None:
        """End it from here: the engine will not say anything more."""
        usage = Usage(prompt_tokens=0, completion_tokens=0)
        for request_id in self.ids:
            self.push(Ended(request_id=request_id, usage=usage, error=failure))
        self.wake()

    def cut(self) -> None:
        """Drop the connection: its reader takes nothing."""
        self.gone = True
        self.wake()
        if self._abort is not None:
            self._abort()
