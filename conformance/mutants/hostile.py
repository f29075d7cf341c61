"""Schedulers that mean harm. The core must not be hurt: no overcommit, no loss, no hang."""

from typing import Final, cast

from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import How, SequenceView, StepBuilder

HUGE: Final = 10**9


class PlansNothing:
    """Takes everything in and never does anything."""

    def __init__(self, limits: Limits) -> None:
        self.waiting: dict[int, SequenceView] = {}

    def add(self, sequence: SequenceView) -> None:
        """Remember it."""
        self.waiting[sequence.id] = sequence

    def plan(self, build: StepBuilder) -> None:
        """Nothing."""

    def remove(self, sequence_id: int) -> None:
        """Forget it."""
        self.waiting.pop(sequence_id, None)

    def num_waiting(self) -> int:
        """As it is."""
        return len(self.waiting)

    def check_integrity(self) -> None:
        """All is well."""


class StartsTwice(PlansNothing):
    """Starts and runs everything several times over, and never forgets anybody."""

    def plan(self, build: StepBuilder) -> None:
        for sequence in list(self.waiting.values()):
            for _ in range(3):
                build.start(sequence)
                build.run(sequence)


class AsksForTheWorld(PlansNothing):
    """Asks for more tokens than there are, for none, and for fewer than none."""

    def plan(self, build: StepBuilder) -> None:
        for count in (HUGE, 0, -5):
            for sequence in build.running:
                build.run(sequence, count)
            for sequence in list(self.waiting.values()):
                if build.start(sequence, count):
                    self.remove(sequence.id)


class PreemptsEverything(PlansNothing):
    """Every step, whatever runs loses its place and starts again."""

    def plan(self, build: StepBuilder) -> None:
        for sequence in build.running:
            if build.preempt(sequence):
                build.preempt(sequence)
                self.waiting[sequence.id] = sequence
        for sequence in sorted(self.waiting.values(), key=lambda s: -s.id):
            if build.start(sequence):
                self.remove(sequence.id)


class PreemptsForNothing(PlansNothing):
    """Every step, whatever runs loses its place; one token of each is computed again."""

    def plan(self, build: StepBuilder) -> None:
        for sequence in build.running:
            build.preempt(sequence)
        for sequence in list(self.waiting.values()):
            if build.start(sequence, 1):
                self.remove(sequence.id)


class PreemptsStrangely(PlansNothing):
    """Preempts what waits, what was scheduled already, and in ways that don't exist."""

    def plan(self, build: StepBuilder) -> None:
        for sequence in list(self.waiting.values()):
            build.preempt(sequence)
            if build.start(sequence, 2):
                build.preempt(sequence)
                self.remove(sequence.id)
        for sequence in build.running:
            build.preempt(sequence, cast("How", "teleport"))
            build.run(sequence)
            build.preempt(sequence)


class SwapsEverything(PlansNothing):
    """Every step, whatever runs is swapped out, and begins again with one token."""

    def plan(self, build: StepBuilder) -> None:
        for sequence in build.running:
            build.preempt(sequence, "swap", "spite")
        for sequence in build.stalled:
            build.preempt(sequence, "swap")
        for sequence in list(self.waiting.values()):
            if build.start(sequence, 1):
                self.remove(sequence.id)


class SwapsInOneStep(PlansNothing):
    """Swaps out and in again within a step, in either way by turns, and asks for prices."""

    def plan(self, build: StepBuilder) -> None:
        for sequence in build.running:
            build.cost(sequence)
            way: How = "swap" if sequence.num_preemptions % 2 else "recompute"
            if build.preempt(sequence, way):
                build.cost(sequence)
                if not build.start(sequence):
                    build.start(sequence, 2)
                build.preempt(sequence, "swap")
                self.waiting[sequence.id] = sequence
        for sequence in sorted(self.waiting.values(), key=lambda s: s.num_tokens):
            build.wait(sequence, "blocks")
            if build.start(sequence):
                self.remove(sequence.id)


class FillsThePool(PlansNothing):
    """Starts everybody with one token, so that nobody's prompt can be finished."""

    def plan(self, build: StepBuilder) -> None:
        for sequence in list(self.waiting.values()):
            if build.start(sequence, 1):
                self.remove(sequence.id)
        for sequence in build.running:
            build.run(sequence, 1)


class StartsAndForgets(PlansNothing):
    """Starts what comes and never runs it again."""

    def plan(self, build: StepBuilder) -> None:
        for sequence in list(self.waiting.values()):
            if build.start(sequence, 3):
                self.remove(sequence.id)


class KeepsNobody(PlansNothing):
    """Forgets everybody at once."""

    def add(self, sequence: SequenceView) -> None:
        """Who?"""


class Stranger:
    """A view of a sequence that nobody knows."""

    id = HUGE


class RunsStrangers(PlansNothing):
    """Names sequences that are not in the engine."""

    def plan(self, build: StepBuilder) -> None:
        build.run(Stranger())  # type: ignore[arg-type]


class RunsTheDead(PlansNothing):
    """Goes on naming sequences that have ended."""

    def remove(self, sequence_id: int) -> None:
        """It stays."""

    def plan(self, build: StepBuilder) -> None:
        for sequence in self.waiting.values():
            if not build.start(sequence):
                build.run(sequence)


class Raises(PlansNothing):
    """Breaks at once, whatever it is asked."""

    def add(self, sequence: SequenceView) -> None:
        raise RuntimeError("no")

    def plan(self, build: StepBuilder) -> None:
        raise RuntimeError("no")

    def remove(self, sequence_id: int) -> None:
        raise RuntimeError("no")


SURVIVED: Final = (
    PlansNothing,
    StartsTwice,
    AsksForTheWorld,
    PreemptsEverything,
    PreemptsForNothing,
    PreemptsStrangely,
    SwapsEverything,
    SwapsInOneStep,
    FillsThePool,
    StartsAndForgets,
    KeepsNobody,
)
"""Those that the engine goes on with: every request is answered."""
FATAL: Final = (RunsStrangers, RunsTheDead, Raises)
"""Those whose state can't be trusted: every request ends with an error."""
