"""Timeline: what happened to each request, and when; bounded, cheap, thread-safe.

Marks come from the step thread and from transports. Those that repeat (waiting for
the same reason, scheduled, a token ready, a token written) are folded into one event
that keeps sums and the first and last time; behind it lies each mark's own time, step
and count, as long as there is room. Times are seconds on the engine's monotonic clock.

Bounds: requests (``capacity_requests``, those that ended go first), events a request
(``max_events``), marks kept in detail a request (``max_details``) and in all
(``max_total_details``, 20 bytes each: 20 MiB as it comes), and the last 65,536 steps'
ends (1 MiB). Where details go, the oldest go first; the sums stay exact.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal

from .latency import Latencies, latencies
from .runs import AMOUNTS, NO_STEP, Run, What
from .track import Key, Track

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Latencies", "Timeline", "What", "latencies"]

_OPENING: Final = frozenset({"accepted", "admitted", "refused"})
_CLOSING: Final = frozenset({"refused", "released"})
_CHECK: Final = 64
"""Marks of a run after which the bounds are looked at."""
_STEPS: Final = 1 << 16
"""Steps whose ends are remembered."""


class Timeline:
    """The last requests' events. Take ``capacity_requests`` above the engine's bound on
    requests in flight: a request that was dropped while it ran takes no more marks.
    """

    def __init__(
        self,
        capacity_requests: int = 1024,
        *,
        max_events: int = 256,
        max_details: int = 1 << 15,
        max_total_details: int = 1 << 20,
    ) -> None:
        """:param max_events: a request's limit; beyond it events from the middle go
        :param max_details: marks of one request whose own times are kept
        :param max_total_details: the same for all requests together
        """
        if capacity_requests < 1 or max_events < 8 or min(max_details, max_total_details) < 0:
            msg = (
                f"capacity_requests is {capacity_requests} and max_events is {max_events}, "
                f"max_details {max_details} and max_total_details {max_total_details}; "
                "at least 1 and 8, 0 and 0 are needed"
            )
            raise ValueError(msg)
        self._capacity = capacity_requests
        self._max_events = max_events
        self._max_details = max_details
        self._max_total = max_total_details
        self._tracks: OrderedDict[str, Track] = OrderedDict()
        self._closed: OrderedDict[str, None] = OrderedDict()
        """Requests that ended, in that order: the first to go."""
        self._shedding: OrderedDict[str, Track] = OrderedDict()
        """Every track, in the order in which they lose their details."""
        self._kept = 0
        self._ended_steps = array("q", [NO_STEP]) * _STEPS
        self._step_ends = array("d", [0.0]) * _STEPS
        self._lock = Lock()

    def mark(self, request_id: str, what: What, time: float, **facts: Any) -> None:
        """Note that something happened. A microsecond or two; from any thread.

        A request's first mark must be ``accepted``, ``admitted`` or ``refused``; other
        marks of an unknown request are dropped.
        """
        amount = AMOUNTS.get(what)
        with self._lock:
            if amount is None:
                self._moment(request_id, what, time, facts)
                return
            count = facts.pop(amount, 1)
            step = facts.pop("step", NO_STEP)
            key = (what, facts.get("reason")) if what == "waiting" else what
            self._repeat(request_id, key, time, count, step, facts.get("index"), facts)

    def scheduled(self, step: int, time: float, work: Iterable[tuple[str, int, int]]) -> None:
        """Note what a step computes. Cheaper than a mark for each.

        :param work: request id, choice and number of tokens of each span
        """
        with self._lock:
            tracks = self._tracks
            for request_id, index, count in work:
                try:
                    run = tracks[request_id].live[index]["scheduled"]
                except KeyError:
                    self._repeat(request_id, "scheduled", time, count, step, index)
                    continue
                run.times.append(time)
                run.amounts.append(count)
                run.steps.append(step)
                self._kept += 1
                if not len(run.times) % _CHECK:
                    self._bound(request_id)

    def step_ended(self, step: int, time: float) -> None:
        """Note when a step was committed."""
        place = step % _STEPS
        with self._lock:
            self._ended_steps[place] = step
            self._step_ends[place] = time

    def tokens(
        self,
        what: Literal["token_ready", "token_written"],
        request_id: str,
        index: int,
        time: float,
        count: int,
    ) -> None:
        """Note tokens of a choice. Cheaper than ``mark``."""
        with self._lock:
            try:
                run = self._tracks[request_id].live[index][what]
            except KeyError:
                self._repeat(request_id, what, time, count, NO_STEP, index)
                return
            run.times.append(time)
            run.amounts.append(count)
            self._kept += 1
            if not len(run.times) % _CHECK:
                self._bound(request_id)

    def of(self, request_id: str) -> tuple[dict[str, Any], ...]:
        """A request's events in the order in which they began; empty when unknown.

        Every event has ``what``, ``time`` and its facts. A folded one has also
        ``until`` (time of its last mark), ``marks`` (how many) and ``longest_gap``
        (seconds between two of them); after more than one mark its ``step`` is told as
        ``first_step`` and ``last_step``. Where details are kept there are lists, an
        entry a mark: ``times``, ``counts`` (tokens), ``steps`` and ``ends`` (when the
        step was committed; None: it is under way or long past). They hold the last
        marks of the run: fewer than ``marks`` where older ones were dropped. Where
        events were dropped there is one ``omitted`` with their ``count``.
        """
        with self._lock:
            track = self._tracks.get(request_id)
            copied = track.copy(self._max_events // 2) if track is not None else []
        events = [event.event() if isinstance(event, Run) else event for event in copied]
        for event in events:
            if "steps" in event:
                event["ends"] = [self._end_of(step) for step in event["steps"]]
        return tuple(events)

    def request_ids(self) -> tuple[str, ...]:
        """Known requests, oldest first."""
        with self._lock:
            return tuple(self._tracks)

    @property
    def num_details(self) -> int:
        """Marks whose own times are kept, over all requests."""
        return self._kept

    def _moment(self, request_id: str, what: str, time: float, facts: dict[str, Any]) -> None:
        track = self._tracks.get(request_id)
        if track is None or (track.closed and what in _OPENING):
            if what not in _OPENING:
                return
            track = self._open(request_id)
        event = {"what": what, "time": time, **facts}
        self._kept -= track.moment(event, self._max_events)
        if what in _CLOSING:
            track.closed = True
            self._closed[request_id] = None

    def _repeat(
        self,
        request_id: str,
        key: Key,
        time: float,
        count: int,
        step: int,
        index: int | None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        """One more mark of a run, which begins with it if there is none."""
        track = self._tracks.get(request_id)
        if track is None:
            return
        try:
            run = track.live[index][key]
        except KeyError:
            what = key if isinstance(key, str) else key[0]
            run = Run(what, time, step, {"index": index} if facts is None else facts)
            self._kept -= track.open(key, run, self._max_events)
            self._bound(request_id)
        run.times.append(time)
        run.amounts.append(count)
        if step >= 0:
            run.steps.append(step)
        self._kept += 1
        if not len(run.times) % _CHECK:
            self._bound(request_id)

    def _bound(self, request_id: str) -> None:
        """Past the limit of one request it loses details, past that of all the oldest."""
        track = self._tracks[request_id]
        if track.kept > self._max_details:
            self._kept -= track.shed(self._max_details * 3 // 4)
        most = self._max_total * 7 // 8 if self._kept > self._max_total else self._kept
        while self._kept > most:
            request_id, track = next(iter(self._shedding.items()))
            self._shedding.move_to_end(request_id)
            self._kept -= track.shed(0)

    def _end_of(self, step: int) -> float | None:
        place = step % _STEPS
        end = self._step_ends[place]
        return end if self._ended_steps[place] == step else None

    def _open(self, request_id: str) -> Track:
        self._drop(request_id)
        if len(self._tracks) >= self._capacity:
            self._drop(next(iter(self._closed or self._tracks)))
        track = self._tracks[request_id] = self._shedding[request_id] = Track()
        return track

    def _drop(self, request_id: str) -> None:
        track = self._tracks.pop(request_id, None)
        if track is not None:
            self._kept -= track.kept
            del self._shedding[request_id]
            self._closed.pop(request_id, None)
