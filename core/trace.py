"""Trace: timelines as a picture that Perfetto and chrome://tracing open.

Follows the Trace Event Format (Google, "Trace Event Format", JSON Object Format): ``X``
complete events with ``ts`` and ``dur`` in microseconds, ``i`` instants of thread scope,
``C`` counters, and ``M`` metadata that names processes and threads. One process is the
engine, one thread a choice of a request.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from .trace_rows import Row, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TraceEvent = dict[str, Any]

PROCESS: Final = 1


def chrome_trace(
    timelines: Mapping[str, tuple[dict[str, Any], ...]], *, name: str = "enginebay"
) -> dict[str, Any]:
    """Turn timelines into a trace.

    :param timelines: what ``Timeline.of`` said, by request id
    :param name: the process's
    :return: ``traceEvents`` and ``displayTimeUnit``; plain data for JSON
    """
    rows = [row for key, timeline in timelines.items() for row in rows_of(key, timeline)]
    events = [named("process_name", name)]
    for thread, row in enumerate(rows, start=1):
        events += thread_events(row, thread)
    events += _counters(row.changes for row in rows)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def named(what: str, name: str, thread: int = 0, process: int = PROCESS) -> TraceEvent:
    """Give a process (``process_name``) or a thread (``thread_name``) its name."""
    return _event("M", what, 0.0, process, thread, args={"name": name})


def thread_events(row: Row, thread: int, process: int = PROCESS) -> list[TraceEvent]:
    """A row as the events of one thread, its name first."""
    events = [named("thread_name", row.name, thread, process)]
    for span in row.spans:
        more = {"cat": span.kind, "dur": _micro(span.end - span.begin), "args": span.facts}
        events.append(_event("X", span.label, span.begin, process, thread, **more))
    for moment in row.moments:
        more = {"cat": moment.kind, "s": "t", "args": moment.facts}
        events.append(_event("i", moment.label, moment.time, process, thread, **more))
    return events


def counter(time: float, running: int, waiting: int, process: int = PROCESS) -> TraceEvent:
    """How many run and how many wait, from ``time`` on."""
    counts = {"running": running, "waiting": waiting}
    return _event("C", "choices", time, process, 0, cat="engine", args=counts)


def _event(
    phase: str, name: str, time: float, process: int, thread: int, **more: Any
) -> TraceEvent:
    place = {"ts": _micro(time), "pid": process, "tid": thread}
    return {"name": name, "ph": phase, **place, **more}


def _counters(changes: Iterable[list[tuple[float, int, int]]]) -> list[TraceEvent]:
    ordered = sorted(change for row in changes for change in row)
    running = accumulate(change[1] for change in ordered)
    waiting = accumulate(change[2] for change in ordered)
    return [
        counter(change[0], *counts)
        for change, counts in zip(ordered, zip(running, waiting, strict=True), strict=True)
    ]


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)
