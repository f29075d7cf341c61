"""Latencies: what a request's reader waited for, derived from its timeline."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

Event = dict[str, Any]


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader waited for, in seconds; ``None`` where it has not happened."""

    queue: float | None = None
    """From accepted to the first choice's start."""
    first_token: float | None = None
    """From accepted to the first token ready, of whichever choice."""
    token_interval: float | None = None
    """Mean time between ready tokens of a choice, over all choices. Tokens of one step
    are ready together: nothing lies between them."""
    longest_interval: float | None = None
    """Longest time between two steps that gave one choice tokens, gaps between runs
    (a preemption, say) included."""
    engine: float | None = None
    """From accepted to the last token ready."""
    transport: float | None = None
    """From the last token ready to the last token written: time outside the engine.
    ``None`` as long as a ready token is not written."""
    token_transport: float | None = None
    """Median over tokens of the time from ready to written, where both were kept."""
    longest_token_transport: float | None = None
    """The longest of them."""


def latencies(events: tuple[Event, ...]) -> Latencies:
    """Derive a request's latencies from ``Timeline.of``."""
    begin = _first(events, "accepted")
    first = _first(events, "first_token")
    ready = [event for event in events if event["what"] == "token_ready"]
    written = [event for event in events if event["what"] == "token_written"]
    if first is None and ready:
        first = ready[0]["time"]
    last_ready = max((event["until"] for event in ready), default=None)
    last_written = max((event["until"] for event in written), default=None)
    omitted = [event["time"] for event in events if event["what"] == "omitted"]
    mean, longest = _intervals(ready, omitted)
    delays = [] if omitted else _token_delays(ready, written)
    caught_up = _total(written) >= _total(ready)
    return Latencies(
        queue=_between(begin, _first(events, "started")),
        first_token=_between(begin, first),
        token_interval=mean,
        longest_interval=longest,
        engine=_between(begin, last_ready),
        transport=_between(last_ready, last_written) if caught_up else None,
        token_transport=median(delays) if delays else None,
        longest_token_transport=max(delays, default=None),
    )


def _first(events: tuple[Event, ...], what: str) -> float | None:
    return next((event["time"] for event in events if event["what"] == what), None)


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin


def _total(runs: list[Event]) -> int:
    return sum(run["count"] for run in runs)


def _choices(runs: list[Event]) -> dict[Any, list[Event]]:
    choices: dict[Any, list[Event]] = {}
    for run in runs:
        choices.setdefault(run.get("index", 0), []).append(run)
    return choices


def _intervals(ready: list[Event], omitted: list[float]) -> tuple[float | None, float | None]:
    """Mean and longest seconds between tokens of one choice. Where events were dropped
    nothing is known of what lay between their neighbours."""
    seconds, intervals = 0.0, 0
    gaps: list[float] = []
    for runs in _choices(ready).values():
        for run in runs:
            seconds += run["until"] - run["time"]
            intervals += run["count"] - 1
            gaps += [run["longest_gap"]] if run["marks"] > 1 else []
        for before, after in pairwise(runs):
            if not any(before["time"] <= time <= after["time"] for time in omitted):
                gaps.append(after["time"] - before["until"])
                seconds += gaps[-1]
                intervals += 1
    return (seconds / intervals if intervals > 0 else None), max(gaps, default=None)


def _token_delays(ready: list[Event], written: list[Event]) -> list[float]:
    """Seconds from ready to written, for each token of which both times were kept."""
    choices = _choices(written)
    delays = []
    for index, runs in _choices(ready).items():
        moments = dict(_tokens(runs))
        for number, time in _tokens(choices.get(index, [])):
            if number in moments:
                delays.append(time - moments[number])
    return delays


def _tokens(runs: list[Event]) -> Iterator[tuple[int, float]]:
    """Number, from 0 on, and time of each token of a choice whose time was kept."""
    end = 0
    for run in runs:
        end += run["count"]
        counts = run.get("counts", [])
        number = end - sum(counts)
        for time, count in zip(run.get("times", []), counts, strict=True):
            for _ in range(count):
                yield number, time
                number += 1
