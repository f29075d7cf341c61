"""Schedulers with one fault each, on top of the chunked one."""

import heapq
from typing import Final

from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import SequenceView, StepBuilder
from enginebay.plugins.schedulers.chunked import Chunked, Options

from .mutant import Mutant


class Faulty(Chunked):
    """Chunked with its default options."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(Options(), limits)


class LosesOne(Faulty):
    """Every seventh sequence that is added is forgotten."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.num_added = 0

    def add(self, sequence: SequenceView) -> None:
        self.num_added += 1
        if self.num_added % 7:
            super().add(sequence)


class DropsWhatDoesNotFit(Faulty):
    """The first in the queue is thrown away when it can't start now."""

    def plan(self, build: StepBuilder) -> None:
        super().plan(build)
        if self._waiting:
            self.remove(self._first().id)


class StarvesTheNewest(Faulty):
    """The last in the queue waits until another comes."""

    def plan(self, build: StepBuilder) -> None:
        newest = max(self._waiting, default=None)
        hidden = None if newest is None else self._waiting.pop(newest)
        super().plan(build)
        if hidden is not None:
            self.add(hidden)


class LastComeFirstServed(Faulty):
    """The newest goes first, so under load the oldest never does."""

    def add(self, sequence: SequenceView) -> None:
        self._waiting[sequence.id] = sequence
        heapq.heappush(self._queue, (-sequence.arrival, -sequence.id))

    def _first(self) -> SequenceView:
        while -self._queue[0][1] not in self._waiting:
            heapq.heappop(self._queue)
        return self._waiting[-self._queue[0][1]]


class PrefersATenant(Faulty):
    """Tenants are served in the order of their names; the last of them starves."""

    def _first(self) -> SequenceView:
        first = min(self._waiting.values(), key=lambda s: (s.tenant != "many", s.arrival, s.id))
        self._queue = [place for place in self._queue if place[1] != first.id]
        self._queue.insert(0, (first.arrival, first.id))
        return first

    def plan(self, build: StepBuilder) -> None:
        super().plan(build)
        heapq.heapify(self._queue)


class ForgetsToRemove(Faulty):
    """A request that was cancelled stays in the queue."""

    def remove(self, sequence_id: int) -> None:
        """It stays."""


class IgnoresThePreempted(Faulty):
    """Who lost its blocks is not queued again."""

    def add(self, sequence: SequenceView) -> None:
        if not sequence.num_preemptions:
            super().add(sequence)


class WaitsForABatch(Faulty):
    """Nothing starts until four wait."""

    def plan(self, build: StepBuilder) -> None:
        if len(self._waiting) < 4 and not build.running:
            return
        super().plan(build)


class CountsThePast(Faulty):
    """``num_waiting`` counts every sequence that ever waited."""

    def num_waiting(self) -> int:
        return len(self._queue) + 1


class ScansTheQueue(Faulty):
    """Looks at everybody who waits, every step."""

    def plan(self, build: StepBuilder) -> None:
        sum(sequence.num_tokens for sequence in self._waiting.values())
        super().plan(build)


class ScansToRemove(Faulty):
    """Looks through the queue for whoever leaves."""

    def remove(self, sequence_id: int) -> None:
        for sequence in list(self._waiting.values()):
            if sequence.id == sequence_id:
                super().remove(sequence_id)


SCHEDULER_MUTANTS: Final = (
    Mutant("loses a request", LosesOne, "scheduler/holds-all"),
    Mutant("drops what does not fit", DropsWhatDoesNotFit, "scheduler/holds-all"),
    Mutant("starves the newest", StarvesTheNewest, "scheduler/work-conserving"),
    Mutant("serves the last come first", LastComeFirstServed, "scheduler/no-starvation"),
    Mutant("prefers a tenant", PrefersATenant, "scheduler/no-starvation"),
    Mutant("forgets to remove", ForgetsToRemove, "scheduler/remove-waiting"),
    Mutant("ignores the preempted", IgnoresThePreempted, "scheduler/preempted-return"),
    Mutant("waits for a batch", WaitsForABatch, "scheduler/work-conserving"),
    Mutant("counts the past", CountsThePast, "scheduler/holds-all"),
    Mutant("scans the queue", ScansTheQueue, "scheduler/cost"),
    Mutant("scans to remove", ScansToRemove, "scheduler/cost"),
)
