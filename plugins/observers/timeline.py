"""Observer: writes each finished request's timeline to a file.

As lines of JSON (``jsonl``): ``request_id``, ``tenant``, ``usage``, ``reasons``,
``error``, ``latencies`` (seconds) and ``events``, with times in seconds on the engine's
monotonic clock. Or as a trace (``trace``) that Perfetto and chrome://tracing open: a JSON
array of events, complete after every request; see ``enginebay.trace``.
"""

import time
import weakref
from collections import deque
from pathlib import Path
from queue import Full, Queue
from threading import Event, Thread
from typing import Literal

import msgspec

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.flow import Refusal
from enginebay.hookspecs.observer import ObserverContext, RequestRecord, StepRecord

from .timeline_files import Count, LineFile, TimelineFile, TraceFile

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where timelines go, and how."""

    path: str = ""
    """The file that is appended to; empty: nothing is written."""
    format: Literal["jsonl", "trace"] = "jsonl"
    """Lines of JSON, or a trace for Perfetto and chrome://tracing."""
    linger: float = 1.0
    """Seconds between a request's end and its line: its last tokens may still be on
    their way to the reader, and their times belong to the timeline."""
    max_pending: int = 1024
    """Requests that may wait for their line; more are dropped and counted."""


class Writer:
    """A thread that writes: the step thread must not wait for a disk."""

    def __init__(self, file: TimelineFile, options: Options) -> None:
        self._file = file
        self._linger = options.linger
        self._queue: Queue[tuple[RequestRecord, float] | None] = Queue(options.max_pending)
        self._counts: deque[Count] = deque(maxlen=4 * options.max_pending)
        """Since the last write; the oldest go."""
        self._closing = Event()
        self.error: OSError | None = None
        self.dropped = 0
        self._thread = Thread(target=self._run, name="enginebay-timeline", daemon=True)
        self._thread.start()

    def put(self, record: RequestRecord) -> None:
        """:raises OSError: the file can't be written any more"""
        if self.error is not None:
            raise self.error
        try:
            self._queue.put_nowait((record, time.monotonic() + self._linger))
        except Full:
            self.dropped += 1

    def count(self, moment: float, running: int, waiting: int) -> None:
        """So many run and wait from now on."""
        self._counts.append((moment, running, waiting))

    def close(self) -> None:
        """Write what is pending, without lingering, and close the file."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        for record, due in iter(self._queue.get, None):
            if self.error is not None:
                continue
            self._closing.wait(max(due - time.monotonic(), 0.0))
            try:
                self._file.write(record, self._new_counts())
            except OSError as error:
                self.error = error
        try:
            self._file.close(() if self.error else self._new_counts())
        except OSError as error:
            self.error = error

    def _new_counts(self) -> list[Count]:
        return [self._counts.popleft() for _ in range(len(self._counts))]


class TimelineExport:
    """Hands finished requests to the writer, when there is one."""

    def __init__(self, writer: Writer | None) -> None:
        self._writer = writer
        self._close = None if writer is None else weakref.finalize(self, writer.close)
        self._counted = (0, 0)

    def on_step(self, record: StepRecord) -> None:
        """Steps are in the timelines already; how many run and wait is not."""
        counted = record.num_running, record.num_waiting
        if self._writer is not None and counted != self._counted:
            self._counted = counted
            self._writer.count(record.time, *counted)

    def on_request(self, record: RequestRecord) -> None:
        """:raises OSError: writing failed earlier; the observer is then switched off"""
        if self._writer is not None:
            self._writer.put(record)

    def on_refusal(self, refusal: Refusal) -> None:
        """A refusal ends no request."""

    def render(self) -> str:
        if self._writer is None:
            return ""
        name = "enginebay:timelines_dropped_total"
        return (
            f"# HELP {name} Timelines not written because too many were pending.\n"
            f"# TYPE {name} counter\n{name} {self._writer.dropped}\n"
        )

    def close(self) -> None:
        """Write what is pending; also done when it is collected or the process ends."""
        if self._close is not None:
            self._close()


@hookimpl
def enginebay_observer(options: Options, context: ObserverContext) -> TimelineExport:
    """Open the file, so that a wrong path stops the start."""
    if options.linger < 0 or options.max_pending < 1:
        msg = (
            f"timeline: linger is {options.linger} and max_pending is {options.max_pending}; "
            "at least 0 and 1 are needed"
        )
        raise StackError(msg)
    if not options.path:
        return TimelineExport(None)
    path = Path(options.path)
    try:
        file: TimelineFile
        if options.format == "trace":
            file = TraceFile(path, context.timeline, context.model_name)
        else:
            file = LineFile(path, context.timeline)
    except OSError as error:
        msg = f"timeline: path {options.path!r} can't be written: {error.strerror}"
        raise StackError(msg) from error
    return TimelineExport(Writer(file, options))
