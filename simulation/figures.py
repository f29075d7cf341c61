"""Figures: what a run comes to. Times are simulated seconds unless they say otherwise."""

import math
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from enginebay.flow import Frozen
from enginebay.hookspecs.observer import RequestRecord

from .play import Played
from .recorder import Moment, Track

WELL = frozenset({"stop", "length"})
"""Reasons of answers that are complete."""


class Objective(Frozen, frozen=True, kw_only=True):
    """What a good answer is: the service level that goodput is counted under."""

    ttft: float = 1.0
    """Seconds to the first token at most."""
    itl: float = 0.1
    """Mean seconds between an answer's tokens at most."""


class Spread(Frozen, frozen=True, kw_only=True):
    """Percentiles of some seconds."""

    p50: float
    p95: float
    p99: float
    max: float
    count: int


class Figures(Frozen, frozen=True, kw_only=True):
    """One run."""

    name: str
    offered: int
    done: int
    """Every choice ended by itself, in time."""
    refused: int
    missed: int
    """Ended by their deadline, or later than it."""
    failed: int
    """Accepted, and neither done nor missed: ``capacity`` above all."""
    refusals: dict[str, int]
    """By plugin and reason."""
    seconds: float
    """From the first arrival to the last end."""
    steps: int
    ttft: Spread | None
    """From arrival to the first token of a request."""
    itl: Spread | None
    """Between the tokens of a choice, all of them."""
    e2e: Spread | None
    """From arrival to the end, of those that are done."""
    good: int
    """Done within the objective."""
    goodput: float
    """Good requests a second."""
    requests_per_second: float
    tokens_per_second: float
    """Generated."""
    prompt_tokens_per_second: float
    """Of those that are done, cached ones included."""
    fairness_gap: float
    """See ``Fairness.gap``; input tokens count 1, output tokens 2."""
    jain: float | None
    preemptions: dict[str, int]
    """By how they were done."""
    recomputed_tokens: int
    saved_blocks: int
    prefix_hit_rate: float
    """Prompt tokens found in the cache when a request first started, of all accepted."""
    kv_mean: float
    """Part of the pool that was held, over the time that the engine computed."""
    kv_peak: float
    kv_waste: float
    """Part of the held positions that nothing was in, over that time. Shared positions
    count for each holder, so sharing hides waste; it is not below 0."""
    wall_seconds: float
    """Real seconds that the simulation took."""


def figures(played: Played, objective: Objective) -> Figures:
    """Count a run."""
    recorder = played.recorder
    records = recorder.requests.values()
    missed = [r for r in records if _missed(r)]
    done = [r for r in records if not _missed(r) and WELL.issuperset(r.reasons)]
    good = [r for r in done if _good(r, played, objective)]
    seconds = max((r.finished for r in records), default=0.0)
    occupancy = _occupancy(played)
    return Figures(
        name=played.candidate.name,
        offered=len(played.calls),
        done=len(done),
        refused=len(played.turned_away),
        missed=len(missed),
        failed=len(records) - len(done) - len(missed),
        refusals=dict(Counter(f"{r.plugin}: {r.reason}" for r in recorder.refusals)),
        seconds=seconds,
        steps=len(recorder.moments),
        ttft=spread(r.first_token - r.arrival for r in records if r.first_token is not None),
        itl=spread(gap for track in recorder.tracks.values() for gap in _gaps(track)),
        e2e=spread(r.finished - r.arrival for r in done),
        good=len(good),
        goodput=_rate(len(good), seconds),
        requests_per_second=_rate(len(done), seconds),
        tokens_per_second=_rate(sum(r.usage.completion_tokens for r in records), seconds),
        prompt_tokens_per_second=_rate(sum(r.usage.prompt_tokens for r in done), seconds),
        fairness_gap=recorder.fairness.gap,
        jain=recorder.fairness.jain,
        preemptions=dict(Counter(p[1] for t in recorder.tracks.values() for p in t.preemptions)),
        recomputed_tokens=sum(r.recomputed_tokens for r in records),
        saved_blocks=recorder.num_saved_blocks,
        prefix_hit_rate=_rate(
            sum(r.usage.cached_tokens for r in records), sum(r.usage.prompt_tokens for r in records)
        ),
        kv_mean=occupancy[0],
        kv_peak=occupancy[1],
        kv_waste=occupancy[2],
        wall_seconds=played.wall_seconds,
    )


def spread(values: Iterable[float]) -> Spread | None:
    """Percentiles, between neighbours where they fall there; ``None``: nothing came."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Spread(
        p50=_percentile(ordered, 0.5),
        p95=_percentile(ordered, 0.95),
        p99=_percentile(ordered, 0.99),
        max=ordered[-1],
        count=len(ordered),
    )


def _percentile(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))


def _gaps(track: Track) -> list[float]:
    return [later - earlier for earlier, later in pairwise(track.token_times)]


def _missed(record: RequestRecord) -> bool:
    late = record.deadline is not None and record.finished > record.deadline
    return late or "deadline" in record.reasons


def _good(record: RequestRecord, played: Played, objective: Objective) -> bool:
    """The first token came in time, and so did the others of every choice on average."""
    if record.first_token is None or record.first_token - record.arrival > objective.ttft:
        return False
    tracks = [played.recorder.tracks[record.request_id, index] for index in range(record.n)]
    gaps = [_gaps(track) for track in tracks]
    return all(sum(some) <= objective.itl * len(some) for some in gaps)


def _occupancy(played: Played) -> tuple[float, float, float]:
    """Mean and peak part of the pool held, and the part of that which is idle."""
    limits, moments = played.candidate.limits, played.recorder.moments
    held = sum(m.used * (m.end - m.begin) for m in moments)
    filled = sum(_filled(m, limits.block_size) * (m.end - m.begin) for m in moments)
    seconds = sum(m.end - m.begin for m in moments)
    peak = max((m.used for m in moments), default=0)
    return (
        _rate(held, seconds * limits.num_blocks),
        peak / limits.num_blocks,
        1 - filled / (held * limits.block_size) if held else 0.0,
    )


def _filled(moment: Moment, block_size: int) -> int:
    return min(moment.filled, moment.used * block_size)


def _rate(amount: float, of: float) -> float:
    return amount / of if of > 0 else 0.0
