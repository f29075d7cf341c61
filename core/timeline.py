"""Timeline: what happened to each request, and when; bounded, cheap, thread-safe.

Marks come from the step thread and from transports. Those that repeat (waiting for
the same reason, scheduled, a token ready, a token written) are folded into one event
that keeps sums and the first and last time, so a long answer takes no more room than
a short one. Times are seconds on the engine's monotonic clock.
"""

from collections import OrderedDict
from itertools import pairwise
from threading import Lock
from typing import Any, Final, Literal

import msgspec

What = Literal[
    "accepted",
    "admitted",
    "refused",
    "waiting",
    "started",
    "scheduled",
    "prefix_hit",
    "preempted",
    "first_token",
    "token_ready",
    "token_written",
    "finished",
    "released",
]
"""Facts by kind: ``refused`` (plugin, reason), ``waiting`` (reason), ``scheduled`` (step,
num_tokens, index), ``prefix_hit`` (num_tokens), ``preempted`` (by, how), ``token_ready``
and ``token_written`` (count, index), ``finished`` (index, reason)."""

_FOLDED: Final = {
    "waiting": "reason",
    "scheduled": "index",
    "token_ready": "index",
    "token_written": "index",
}
"""Kinds that repeat, and the fact that tells one run of them from another."""
_OPENING: Final = frozenset({"accepted", "admitted", "refused"})
_CLOSING: Final = frozenset({"refused", "released"})
_SUMMED: Final = ("count", "num_tokens")


class _Track:
    """The events of one request. An event is a dict: cheaper to fold than a struct."""

    __slots__ = ("closed", "events", "omitted", "runs")

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.runs: dict[tuple[str, Any], dict[str, Any]] = {}
        self.omitted = 0
        self.closed = False

    def add(self, event: dict[str, Any], max_events: int) -> None:
        if len(self.events) >= max_events:
            del self.events[max_events // 2]
            self.omitted += 1
        self.events.append(event)


class Timeline:
    """The last requests' events, oldest request dropped first.

    Take ``capacity_requests`` above the engine's bound on requests in flight: a request
    that was dropped while it ran takes no more marks.
    """

    def __init__(self, capacity_requests: int = 1024, *, max_events: int = 256) -> None:
        """:param max_events: a request's limit; beyond it events from the middle go."""
        if capacity_requests < 1 or max_events < 8:
            msg = (
                f"capacity_requests is {capacity_requests} and max_events is {max_events}; "
                "at least 1 and 8 are needed"
            )
            raise ValueError(msg)
        self._capacity = capacity_requests
        self._max_events = max_events
        self._tracks: OrderedDict[str, _Track] = OrderedDict()
        self._lock = Lock()

    def mark(self, request_id: str, what: What, time: float, **facts: Any) -> None:
        """Note that something happened. One or two microseconds; from any thread.

        A request's first mark must be ``accepted``, ``admitted`` or ``refused``; other
        marks of an unknown request are dropped.
        """
        with self._lock:
            track = self._tracks.get(request_id)
            if track is None or (track.closed and what in _OPENING):
                if what not in _OPENING:
                    return
                track = self._open(request_id)
            key = _FOLDED.get(what)
            if key is None:
                track.runs.clear()
                track.add({"what": what, "time": time, **facts}, self._max_events)
                track.closed = track.closed or what in _CLOSING
                return
            run = (what, facts.get(key))
            event = track.runs.get(run)
            if event is None:
                event = {"what": what, "time": time, "until": time, "marks": 1}
                event.update(facts, longest_gap=0.0)
                track.runs[run] = event
                track.add(event, self._max_events)
            else:
                _fold(event, time, facts)

    def of(self, request_id: str) -> tuple[dict[str, Any], ...]:
        """A request's events in the order in which they began; empty when unknown.

        Every event has ``what``, ``time`` and its facts. A folded one has also
        ``until`` (time of its last mark), ``marks`` (how many) and ``longest_gap``
        (seconds between two of them); its ``step`` becomes ``first_step`` and
        ``last_step``. Where events were dropped there is one ``omitted`` with their
        ``count``.
        """
        with self._lock:
            track = self._tracks.get(request_id)
            if track is None:
                return ()
            events = [dict(event) for event in track.events]
            omitted = track.omitted
        if omitted:
            middle = self._max_events // 2
            gap = {"what": "omitted", "time": events[middle]["time"], "count": omitted}
            events.insert(middle, gap)
        return tuple(events)

    def request_ids(self) -> tuple[str, ...]:
        """Known requests, oldest first."""
        with self._lock:
            return tuple(self._tracks)

    def _open(self, request_id: str) -> _Track:
        self._tracks.pop(request_id, None)
        if len(self._tracks) >= self._capacity:
            self._tracks.popitem(last=False)
        track = self._tracks[request_id] = _Track()
        return track


def _fold(event: dict[str, Any], time: float, facts: dict[str, Any]) -> None:
    gap = time - event["until"]
    if gap > event["longest_gap"]:
        event["longest_gap"] = gap
    event["until"] = time
    event["marks"] += 1
    for name in _SUMMED:
        if name in facts:
            event[name] = event.get(name, 0) + facts[name]
    if "step" in facts:
        if "step" in event:
            event["first_step"] = event.pop("step")
        event["last_step"] = facts["step"]


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader waited for, in seconds; ``None`` where it has not happened."""

    queue: float | None = None
    """From accepted to started."""
    first_token: float | None = None
    """From accepted to the first token ready."""
    token_interval: float | None = None
    """Mean time between ready tokens of a choice, over all choices."""
    longest_interval: float | None = None
    """Longest time between two steps that gave one choice tokens, gaps between runs
    (a preemption, say) included."""
    engine: float | None = None
    """From accepted to the last token ready."""
    transport: float | None = None
    """From the last token ready to the last token written: time outside the engine."""


def latencies(events: tuple[dict[str, Any], ...]) -> Latencies:
    """Derive a request's latencies from ``Timeline.of``."""
    begin = _first(events, "accepted")
    started = _first(events, "started")
    first = _first(events, "first_token")
    ready = [event for event in events if event["what"] == "token_ready"]
    written = [event for event in events if event["what"] == "token_written"]
    if first is None and ready:
        first = ready[0]["time"]
    last_ready = max((event["until"] for event in ready), default=None)
    last_written = max((event["until"] for event in written), default=None)
    mean, longest = _intervals(ready)
    return Latencies(
        queue=_between(begin, started),
        first_token=_between(begin, first),
        token_interval=mean,
        longest_interval=longest,
        engine=_between(begin, last_ready),
        transport=_between(last_ready, last_written),
    )


def _first(events: tuple[dict[str, Any], ...], what: What) -> float | None:
    return next((event["time"] for event in events if event["what"] == what), None)


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin


def _intervals(ready: list[dict[str, Any]]) -> tuple[float | None, float | None]:
    """Mean and longest seconds between tokens of one choice."""
    choices: dict[Any, list[dict[str, Any]]] = {}
    for event in ready:
        choices.setdefault(event.get("index", 0), []).append(event)
    seconds, intervals, longest = 0.0, 0, None
    for runs in choices.values():
        seconds += runs[-1]["until"] - runs[0]["time"]
        intervals += sum(run.get("count", run["marks"]) for run in runs) - 1
        gaps = [run["longest_gap"] for run in runs if run["marks"] > 1]
        gaps += [after["time"] - run["until"] for run, after in pairwise(runs)]
        longest = max([*gaps, *([] if longest is None else [longest])], default=None)
    return (seconds / intervals if intervals > 0 else None), longest
