"""A track: the events of one request, as moments and runs, in the order they began."""

from __future__ import annotations

from typing import Any

from .runs import Run

Key = str | tuple[str, Any]


class Track:
    """What happened to one request. Not thread-safe: its timeline holds the lock."""

    __slots__ = ("closed", "events", "live", "omitted")

    def __init__(self) -> None:
        self.events: list[dict[str, Any] | Run] = []
        """A moment is a dict; runs are shared with ``live``."""
        self.live: dict[int | None, dict[Key, Run]] = {}
        """Runs that further marks belong to, by choice."""
        self.omitted = 0
        self.closed = False

    @property
    def runs(self) -> list[Run]:
        """Its runs, in the order they began."""
        return [event for event in self.events if isinstance(event, Run)]

    @property
    def kept(self) -> int:
        """Marks whose details are there."""
        return sum(len(run.times) for run in self.runs)

    def moment(self, event: dict[str, Any], max_events: int) -> int:
        """Something that happens once. It ends the runs of its choice, or all of them.

        :return: how many details went with what it displaced
        """
        if "index" in event:
            self.live.pop(event["index"], None)
        else:
            self.live.clear()
        return self._add(event, max_events)

    def open(self, key: Key, run: Run, max_events: int) -> int:
        """A new run, for the choice that its facts name. :return: as ``moment``"""
        gone = self._add(run, max_events)
        self.live.setdefault(run.facts.get("index"), {})[key] = run
        return gone

    def shed(self, most: int) -> int:
        """Drop details until at most ``most`` are left: runs that ended first, oldest
        first, then the older part of those that go on. :return: how many went"""
        live, runs, kept = self._live_ids(), self.runs, self.kept
        before = kept
        for run in runs:
            if kept > most and id(run) not in live:
                kept -= run.drop(len(run.times))
        total, excess = kept, kept - most
        for run in runs if excess > 0 else ():  # those that ended are empty now
            kept -= run.drop(-(-len(run.times) * excess // total))
        return before - kept

    def copy(self, middle: int) -> list[dict[str, Any] | Run]:
        """The events as they are now, with a note where some were dropped."""
        events = [e.copy() for e in self.events]
        if self.omitted:
            after = events[middle]
            time = after.began if isinstance(after, Run) else after["time"]
            events.insert(middle, {"what": "omitted", "time": time, "count": self.omitted})
        return events

    def _add(self, event: dict[str, Any] | Run, max_events: int) -> int:
        gone = self._omit(max_events // 2) if len(self.events) >= max_events else 0
        self.events.append(event)
        return gone

    def _omit(self, middle: int) -> int:
        """Drop the event nearest after the middle that nothing is added to any more."""
        live = self._live_ids()
        order = [*range(middle, len(self.events) - 1), *range(middle - 1, 0, -1)]
        place = next((p for p in order if id(self.events[p]) not in live), middle)
        event = self.events.pop(place)
        self.omitted += 1
        if not isinstance(event, Run):
            return 0
        runs = self.live.get(event.facts.get("index"), {})
        for key in [key for key, run in runs.items() if run is event]:
            del runs[key]
        return len(event.times)

    def _live_ids(self) -> set[int]:
        return {id(run) for runs in self.live.values() for run in runs.values()}
