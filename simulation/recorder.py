"""The recorder: a run's every mark and step, kept whole for figures and for the picture."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from enginebay.conformance.harness import Harness
from enginebay.flow import Refusal
from enginebay.hookspecs.observer import RequestRecord, StepRecord
from enginebay.timeline import Timeline, What

from .fairness import INPUT_PRICE, OUTPUT_PRICE, Fairness

SAME: Final = 1e-9
"""Seconds between two steps that count as none."""


@dataclass
class Segment:
    """A time in which one choice was computed in every step."""

    kind: str
    """``prefill``, ``decode``, or ``recompute``: what a preemption lost."""
    begin: float
    end: float
    num_tokens: int
    num_steps: int = 1


@dataclass
class Track:
    """What happened to one choice of one request."""

    tenant: str
    arrival: float
    segments: list[Segment] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    preemptions: list[tuple[float, str, str]] = field(default_factory=list)
    """When, how, and by whom."""
    started: float | None = None
    ended: float | None = None
    reason: str = ""
    lost: bool = False
    """Its positions were dropped and are being computed again."""


@dataclass(frozen=True)
class Moment:
    """The engine after one step."""

    step: int
    begin: float
    end: float
    used: int
    """KV blocks held."""
    filled: int
    """Positions in the tables of those that run."""
    waiting: int
    running: int
    num_tokens: int


class Recorder(Timeline):
    """Timeline and observer of a simulated run."""

    def __init__(self) -> None:
        super().__init__()
        self.tracks: dict[tuple[str, int], Track] = {}
        self.moments: list[Moment] = []
        self.requests: dict[str, RequestRecord] = {}
        self.refusals: list[Refusal] = []
        self.fairness = Fairness()
        self.num_saved_blocks = 0
        self.harness: Harness | None = None
        """Set once it is built."""
        self._tenants: dict[str, tuple[str, float]] = {}
        self._step: list[tuple[Track, str, int]] = []
        """Of the step under way: whose positions, of what kind, how many."""
        self._waiting: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
        self._served: defaultdict[str, float] = defaultdict(float)

    def mark(self, request_id: str, what: What, time: float, **facts: Any) -> None:
        """Keep what the picture needs. See ``Timeline.mark``."""
        key = request_id, facts.get("index", 0)
        if what == "accepted":
            self._tenants[request_id] = facts.get("tenant", "default"), time
            return
        track = self._track(key)
        waiting = self._waiting[track.tenant]
        if what == "admitted":
            waiting.add(key)
        elif what == "started":
            waiting.discard(key)
            track.started = time if track.started is None else track.started
        elif what == "preempted":
            waiting.add(key)
            track.preemptions.append((time, facts["how"], facts["by"]))
            track.lost = facts["how"] == "recompute"
        elif what == "finished":
            waiting.discard(key)
            track.ended, track.reason = time, facts["reason"]

    def scheduled(self, step: int, time: float, work: Iterable[tuple[str, int, int]]) -> None:
        """What a step computes: kept until it is committed."""
        for request_id, index, num_tokens in work:
            track = self._track((request_id, index))
            kind = "recompute" if track.lost else "decode" if track.token_times else "prefill"
            self._step.append((track, kind, num_tokens))

    def step_ended(self, step: int, time: float) -> None:
        """``on_step`` is told more."""

    def tokens(
        self,
        what: Literal["token_ready", "token_written"],
        request_id: str,
        index: int,
        time: float,
        count: int,
    ) -> None:
        """Tokens of a choice. Nobody reads what is simulated, so all are ready ones."""
        track = self._track((request_id, index))
        track.token_times += [time] * count
        track.lost = False
        self._served[track.tenant] += OUTPUT_PRICE * count

    def on_step(self, record: StepRecord) -> None:
        """A step was committed."""
        if record.step < 0 or self.harness is None:
            return
        begin = record.time - record.duration
        for track, kind, num_tokens in self._step:
            _extend(track.segments, Segment(kind, begin, record.time, num_tokens))
            if kind == "prefill":
                self._served[track.tenant] += INPUT_PRICE * num_tokens
        backlogged = {tenant for tenant, waiting in self._waiting.items() if waiting}
        self.fairness.step(record.duration, dict(self._served), backlogged)
        self._served.clear()
        self.num_saved_blocks += record.num_saved_blocks
        self.moments.append(
            Moment(
                step=record.step,
                begin=begin,
                end=record.time,
                used=record.num_used_blocks,
                filled=sum(s.num_computed for s in self.harness.roster.seats.values()),
                waiting=record.num_waiting,
                running=record.num_running,
                num_tokens=sum(entry[2] for entry in self._step),
            )
        )
        self._step.clear()

    def on_request(self, record: RequestRecord) -> None:
        """A request ended."""
        self.requests[record.request_id] = record

    def on_refusal(self, refusal: Refusal) -> None:
        """A request was turned away."""
        self.refusals.append(refusal)

    def render(self) -> str:
        """Nothing for ``/metrics``."""
        return ""

    def _track(self, key: tuple[str, int]) -> Track:
        track = self.tracks.get(key)
        if track is None:
            track = self.tracks[key] = Track(*self._tenants[key[0]])
        return track


def _extend(segments: list[Segment], new: Segment) -> None:
    """One more step: part of the last segment when it follows at once and is alike."""
    last = segments[-1] if segments else None
    if last is None or last.kind != new.kind or new.begin - last.end > SAME:
        segments.append(new)
        return
    last.end = new.end
    last.num_tokens += new.num_tokens
    last.num_steps += 1
