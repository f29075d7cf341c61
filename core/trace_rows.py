"""Rows of a trace: what one choice of a request did, as spans of time and moments."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

Event = dict[str, Any]

_SEAT: Final = ("preempted", "waiting", "started", "finished", "released", "refused")
"""What changes who holds a seat, or why not, in the order within one moment."""
_MOMENTS: Final = frozenset(
    {"accepted", "admitted", "refused", "prefix_hit", "preempted", "first_token", "finished"}
)


@dataclass(frozen=True)
class Span:
    """From ``begin`` to ``end``, in seconds."""

    kind: str
    """``waiting``, ``preempted``, ``prefill``, ``decode`` or ``steps``."""
    label: str
    begin: float
    end: float
    facts: Event


@dataclass(frozen=True)
class Moment:
    """Something at a time."""

    kind: str
    label: str
    time: float
    facts: Event


@dataclass
class Row:
    """One choice of one request. Spans of steps and of waits don't overlap."""

    name: str
    spans: list[Span] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    changes: list[tuple[float, int, int]] = field(default_factory=list)
    """Time, and by how much the numbers of running and of waiting choices change."""


def rows_of(request_id: str, timeline: Iterable[Event]) -> list[Row]:
    """A row for each choice. What concerns all choices is told on the first one."""
    events = list(timeline)
    if not events:
        return []
    indices = sorted({e["index"] for e in events if e.get("index") is not None}) or [0]
    rows = []
    for index in indices:
        row = Row(request_id if len(indices) == 1 else f"{request_id} #{index}")
        own = [e for e in events if e.get("index", index) == index]
        shared = own if index == indices[0] else [e for e in own if "index" in e]
        _add_steps(row, own)
        _add_moments(row, shared)
        _add_waits(row, own)
        row.spans = _apart(row.spans)
        rows.append(row)
    return rows


def _apart(spans: list[Span]) -> list[Span]:
    """In order; with several steps in flight one begins before the last has ended."""
    free, result = 0.0, []
    for span in sorted(spans, key=lambda span: (span.begin, span.end)):
        begin = max(span.begin, free)
        free = max(span.end, begin)
        result.append(replace(span, begin=begin, end=free))
    return result


def _add_steps(row: Row, events: list[Event]) -> None:
    """Each step whose times are kept; the others of a run as one span."""
    first_token = min((e["time"] for e in events if e["what"] == "first_token"), default=None)
    for run in (event for event in events if event["what"] == "scheduled"):
        times, counts, ends = run.get("times", []), run.get("counts", []), run.get("ends", [])
        if len(times) < run["marks"]:
            end = times[0] if times else run["until"]
            number = run["num_tokens"] - sum(counts)
            facts = {"steps": run["marks"] - len(times), "num_tokens": number}
            row.spans.append(Span("steps", "steps", run["time"], end, facts))
        for place, step in enumerate(run.get("steps", [])):
            begin, end = times[place], ends[place] if ends else None
            if end is None:  # under way, or so long ago that only the next step tells
                end = times[place + 1] if place + 1 < len(times) else begin
            kind = "prefill" if first_token is None or begin < first_token else "decode"
            facts = {"step": step, "num_tokens": counts[place]}
            row.spans.append(Span(kind, kind, begin, end, facts))


def _add_moments(row: Row, events: list[Event]) -> None:
    for event in events:
        what = event["what"]
        if what in _MOMENTS:
            row.moments.append(Moment(what, what, event["time"], _facts(event)))
        elif what in ("token_ready", "token_written"):
            label = what.removeprefix("token_")
            for time, count in zip(event.get("times", []), event.get("counts", []), strict=True):
                row.moments.append(Moment(what, label, time, {"count": count}))
    row.moments.sort(key=lambda moment: moment.time)


def _add_waits(row: Row, events: list[Event]) -> None:
    """Spans without a step: before the first start and after each preemption, cut where
    the reason changes; and while a choice holds a seat but is held back."""
    steps = sorted(
        time for event in events if event["what"] == "scheduled" for time in event.get("times", ())
    )
    since: float = events[0]["time"]
    kind, label, running = "waiting", "queued", False
    facts: Event = {}
    row.changes.append((since, 0, 1))
    now = max(e["until"] if "until" in e else e["time"] for e in events)
    for time, event in [*_seat_changes(events), (now, {"what": "now"})]:
        what = event["what"]
        if running and label:
            place = bisect_right(steps, since)
            resumed = steps[place] if place < len(steps) else time
            row.spans.append(Span(kind, label, since, min(resumed, time), facts))
        elif not running and time > since:
            row.spans.append(Span(kind, label, since, time, facts))
        since, facts = time, _facts(event)
        if what == "waiting":
            kind = kind if not running and kind == "preempted" else "waiting"
            label = f"{kind}: {event['reason']}"
        elif what == "started":
            row.changes.append((time, 1, -1))
            running, kind, label = True, "waiting", ""
        elif what == "preempted":
            row.changes.append((time, -1, 1))
            running, kind, label = False, "preempted", f"preempted: {event.get('how', '')}"
        elif what != "now":
            row.changes.append((time, -1, 0) if running else (time, 0, -1))
            return


def _seat_changes(events: list[Event]) -> list[tuple[float, Event]]:
    found = [
        (time, _SEAT.index(event["what"]), place, event)
        for place, event in enumerate(events)
        if event["what"] in _SEAT
        for time in event.get("times", [event["time"]])
    ]
    return [(time, event) for time, _, _, event in sorted(found, key=lambda entry: entry[:3])]


def _facts(event: Event) -> Event:
    """What is said of it besides kind and time, without lists."""
    hidden = ("what", "time", "times", "counts", "steps", "ends", "until", "index")
    return {key: value for key, value in event.items() if key not in hidden}
