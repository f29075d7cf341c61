"""The in-process client: the engine's edge as plain calls, its loop in one thread."""

import itertools
import threading
import time

import msgspec

from enginebay import hookimpl
from enginebay.engine import Engine
from enginebay.flow import Accepted, FinishReason, Request, Written
from enginebay.hookspecs.client import ClientContext, EngineClient, Health, Listener, Snapshot
from enginebay.ledger.books import Books

CONTRACT = (1, 0)
_ids = itertools.count(1)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to choose."""


class Inproc:
    """Carries one engine to callers in the same process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._id = next(_ids)
        self._books = Books(engine)

    def submit(self, request: Request) -> Accepted:
        """Put a request in; tokenizes in the caller's thread."""
        return self._engine.submit(request, self._id)

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """End a request, wherever it is."""
        self._engine.cancel(request_id, reason)

    def events(self, listener: Listener) -> None:
        """Call ``listener`` on the step thread, once a step."""
        self._engine.attach(self._id, listener)

    def acknowledge(self, written: tuple[Written, ...]) -> None:
        """Report tokens as written."""
        if written:
            self._engine.acknowledge(written)

    def snapshot(self, request_id: str | None = None) -> Snapshot:
        """Counts as they stand; they may change while they are read."""
        engine = self._engine
        events = engine.watch.timeline.of(request_id) if request_id is not None else ()
        return Snapshot(
            num_running=len(engine.roster.seats),
            num_waiting=engine.intake.num_waiting,
            num_used_blocks=engine.allocator.num_blocks - engine.allocator.num_free,
            num_blocks=engine.allocator.num_blocks,
            info=engine.info,
            metrics=engine.watch.render() if request_id is None else "",
            timeline=events,
            tenant=events[0].get("tenant", "") if events else "",
            ledger=self._books.read() if request_id is None else {},
        )

    def health(self) -> Health:
        """Whether requests can be served."""
        engine = self._engine
        return Health(
            state=engine.state,
            alive=engine.state not in ("failed", "closed"),
            ready=engine.state == "ready",
            validated=engine.validated,
            message=engine.failure,
        )

    def drain(self, timeout: float) -> bool:
        """Refuse new requests, wait for the others, then close the engine."""
        engine = self._engine
        if engine.state == "ready":
            engine.state = "draining"
        until = time.monotonic() + timeout
        while engine.busy and engine.state == "draining" and time.monotonic() < until:
            time.sleep(0.005)
        finished = not engine.busy
        engine.stop()
        if engine.thread is not None and engine.thread is not threading.current_thread():
            engine.thread.join(timeout=10.0)
        return finished


@hookimpl
def enginebay_client(options: Options, context: ClientContext) -> EngineClient:
    """Build a client; an engine can have several."""
    return Inproc(context.engine)
