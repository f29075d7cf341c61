"""Schedulers with one fault each, on top of the chunked one."""

from typing import Final

from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import SequenceView, StepBuilder
from enginebay.plugins.schedulers.chunked import Chunked, Options
from enginebay.plugins.schedulers.prefill_first import Options as PrefillOptions
from enginebay.plugins.schedulers.prefill_first import PrefillFirst
from enginebay.plugins.schedulers.queue import WaitingQueue

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
        first = self._queue.first()
        if first is not None:
            self.remove(first.id)


class StarvesTheNewest(Faulty):
    """The last in the queue waits until another comes."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._views: dict[int, SequenceView] = {}

    def add(self, sequence: SequenceView) -> None:
        self._views[sequence.id] = sequence
        super().add(sequence)

    def plan(self, build: StepBuilder) -> None:
        newest = max((number for number in self._views if number in self._queue), default=None)
        if newest is not None:
            self._queue.remove(newest)
        super().plan(build)
        if newest is not None:
            self._queue.add(self._views[newest])


class LastComeFirstServed(Faulty):
    """The newest goes first, so under load the oldest never does."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._queue = WaitingQueue(lambda s: (-s.arrival, -s.id))


class PrefersATenant(Faulty):
    """Tenants are served in the order of their names; the last of them starves."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._queue = WaitingQueue(lambda s: (s.tenant != "many", s.arrival, s.id))


class PrefersAClass(Faulty):
    """Classes are strict: the lower one waits for as long as better ones come."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._queue = WaitingQueue(lambda s: (s.priority, s.arrival, s.id))


class PrefersTheUrgent(Faulty):
    """Earliest deadline first; whoever has none goes last."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._queue = WaitingQueue(lambda s: (s.deadline or float("inf"), s.arrival, s.id))


class StarvesDecodes(PrefillFirst):
    """Whoever generates waits for as long as prompts come."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(PrefillOptions(max_prompt_steps=10**9), limits)


class WaitsForThePrefix(Faulty):
    """One that waits for a prefix keeps everybody behind it waiting."""

    def plan(self, build: StepBuilder) -> None:
        for sequence in build.running:
            build.run(sequence)
        while (first := self._queue.first()) is not None and build.start(first):
            self._queue.remove(first.id)


class IgnoresTheSwapped(Faulty):
    """Who was swapped out is not queued again."""

    def add(self, sequence: SequenceView) -> None:
        if not sequence.num_saved:
            super().add(sequence)


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
        if len(self._queue) < 4 and not build.running:
            return
        super().plan(build)


class CountsThePast(Faulty):
    """``num_waiting`` counts one that left long ago."""

    def num_waiting(self) -> int:
        return len(self._queue) + 1


class ScansTheQueue(Faulty):
    """Looks at everybody who waits, every step."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.views: dict[int, SequenceView] = {}

    def add(self, sequence: SequenceView) -> None:
        self.views[sequence.id] = sequence
        super().add(sequence)

    def plan(self, build: StepBuilder) -> None:
        sum(sequence.num_tokens for sequence in self.views.values())
        super().plan(build)

    def remove(self, sequence_id: int) -> None:
        self.views.pop(sequence_id, None)
        super().remove(sequence_id)


class ScansToRemove(Faulty):
    """Looks through the queue for whoever leaves."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.views: list[SequenceView] = []

    def add(self, sequence: SequenceView) -> None:
        self.views.append(sequence)
        super().add(sequence)

    def remove(self, sequence_id: int) -> None:
        for sequence in list(self.views):
            if sequence.id == sequence_id:
                self.views.remove(sequence)
                super().remove(sequence_id)


SCHEDULER_MUTANTS: Final = (
    Mutant("loses a request", LosesOne, "scheduler/holds-all"),
    Mutant("drops what does not fit", DropsWhatDoesNotFit, "scheduler/holds-all"),
    Mutant("starves the newest", StarvesTheNewest, "scheduler/work-conserving"),
    Mutant("serves the last come first", LastComeFirstServed, "scheduler/no-starvation"),
    Mutant("prefers a tenant", PrefersATenant, "scheduler/no-starvation"),
    Mutant("prefers a class", PrefersAClass, "scheduler/no-starved-class"),
    Mutant("prefers the urgent", PrefersTheUrgent, "scheduler/no-starved-class"),
    Mutant("starves those that generate", StarvesDecodes, "scheduler/goes-on"),
    Mutant("waits for the prefix", WaitsForThePrefix, "scheduler/prefix-wait"),
    Mutant("ignores the swapped", IgnoresTheSwapped, "scheduler/swap"),
    Mutant("forgets to remove", ForgetsToRemove, "scheduler/remove-waiting"),
    Mutant("ignores the preempted", IgnoresThePreempted, "scheduler/preempted-return"),
    Mutant("waits for a batch", WaitsForABatch, "scheduler/work-conserving"),
    Mutant("counts the past", CountsThePast, "scheduler/holds-all"),
    Mutant("scans the queue", ScansTheQueue, "scheduler/cost"),
    Mutant("scans to remove", ScansToRemove, "scheduler/cost"),
)
