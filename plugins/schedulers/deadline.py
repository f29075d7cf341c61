"""Earliest deadline first, among those that can still meet theirs.

A request that can't be done in time any more goes behind all that can: served in its
turn, it would take time from others and be late all the same. The time that a request
needs is its steps (pieces of its prompt, then a token each) at the pace that running
sequences had of late; until a pace is known, everybody can. What runs is judged like
what waits.

A request without a deadline takes its turn as if it were due ``aging_seconds`` after it
came, so none waits for ever. Where the place for an urgent one is lacking, those that are
late or due later give way, with reason ``deadline``.
"""

import math
from typing import Literal

import msgspec

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import (
    Grant,
    How,
    Scheduler,
    SchedulerContext,
    SequenceView,
    StepBuilder,
)

from .queue import WaitingQueue
from .turns import RankedLine, Turns

CONTRACT = (1, 0)
MAX_MOVES = 64
"""Waiting sequences that one step finds to be late at most, so that its cost is bounded."""
SMOOTHING = 0.1
"""Weight of a step in the pace."""

Rank = tuple[bool, float, float, int]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must be in time, and how room is made."""

    goal: Literal["end", "start"] = "end"
    """What must happen before the deadline: the last token (of ``max_tokens``) or the first."""
    aging_seconds: float = 60.0
    """When a request without a deadline counts as due, after its arrival."""
    preempt: bool = True
    """Whether a waiting request that will soon be late may take the place of a running one
    that is late or due later."""
    max_chunk: int = 256
    """Tokens of one prompt in one step at most."""
    preemption: How = "cheapest"
    """What becomes of the cached positions of a sequence that gives way."""


class Deadline:
    """Earliest deadline first; the late go last."""

    def __init__(self, options: Options, limits: Limits) -> None:
        self._options = options
        self._limits = limits
        self._timely = WaitingQueue(self._due)
        self._late = WaitingQueue(self._due)
        self._now = 0.0
        self._pace = 0.0
        """Seconds between two steps of a running sequence; 0 until known."""
        self._stepped: dict[int, float] = {}
        """When each running sequence was last scheduled."""
        self._gaps: list[float] = []
        """Seconds since then, of those scheduled again in this step."""

    def needs(self, sequence: SequenceView) -> float:
        """Seconds until it is done, if it runs from now on."""
        prompt = max(sequence.num_tokens - sequence.num_computed - sequence.num_saved, 1)
        steps = -(-prompt // self._options.max_chunk)
        if self._options.goal == "end":
            steps += sequence.max_tokens - sequence.num_generated - 1
        elif sequence.num_generated:
            return 0.0
        return steps * self._pace

    def late(self, sequence: SequenceView) -> bool:
        """Whether it can't meet its deadline any more."""
        deadline = sequence.deadline
        return deadline is not None and self._now + self.needs(sequence) > deadline

    def rank(self, sequence: SequenceView) -> Rank:
        """The late last; else by deadline, then by arrival."""
        return self.late(sequence), *self._due(sequence)

    def may_take(self, sequence: SequenceView, victim: SequenceView) -> bool:
        """Once half its time to spare is gone, from those that lose nothing by it: they are
        late anyway, or due later and with time to spare."""
        deadline, due = sequence.deadline, self._due(victim)
        if not self._options.preempt or deadline is None:
            return False
        if self.late(sequence) or self._now + 2 * self.needs(sequence) <= deadline:
            return False
        spare = self._now + 2 * self.needs(victim) < due[0]
        return self.late(victim) or (spare and self._due(sequence) < due)

    def granted(self, sequence: SequenceView, grant: Grant, *, started: bool) -> None:
        """Measure the pace."""
        before = self._stepped.get(sequence.id)
        self._stepped[sequence.id] = self._now
        if before is not None and not started:
            self._gaps.append(self._now - before)

    def add(self, sequence: SequenceView) -> None:
        """Queue by deadline; whether it can be met is seen when its turn comes."""
        self._stepped.pop(sequence.id, None)
        self._timely.add(sequence)

    def plan(self, build: StepBuilder) -> None:
        """Run and start by deadline, the late last."""
        self._now = build.now
        for sequence in build.stalled:
            self._stepped.pop(sequence.id, None)  # its pause is its reader's
        self._sort_out()
        Turns(
            build,
            self,
            self,
            RankedLine(build.running, self.rank),
            self._limits,
            max_chunk=self._options.max_chunk,
            how=self._options.preemption,
            reason="deadline",
        ).play()
        self._measure()

    def first(self) -> SequenceView | None:
        """Of what waits: the earliest deadline that can be met, else the earliest."""
        timely = self._timely.first()
        return self._late.first() if timely is None else timely

    def remove(self, sequence_id: int) -> None:
        """Forget a sequence, or take it out of the queue."""
        self._timely.remove(sequence_id)
        self._late.remove(sequence_id)
        self._stepped.pop(sequence_id, None)

    def num_waiting(self) -> int:
        """Sequences not started."""
        return len(self._timely) + len(self._late)

    def check_integrity(self) -> None:
        """Every waiting sequence stands in its queue."""
        self._timely.check_integrity()
        self._late.check_integrity()

    def _due(self, sequence: SequenceView) -> tuple[float, float, int]:
        deadline = sequence.deadline
        if deadline is None:
            deadline = sequence.arrival + self._options.aging_seconds
        return deadline, sequence.arrival, sequence.id

    def _sort_out(self) -> None:
        """Those at the head of the queue that have become late go behind."""
        for _ in range(MAX_MOVES):
            sequence = self._timely.first()
            if sequence is None or not self.late(sequence):
                break
            self._timely.remove(sequence.id)
            self._late.add(sequence)

    def _measure(self) -> None:
        """Bring the pace up to date with this step."""
        if self._gaps:
            gap = sum(self._gaps) / len(self._gaps)
            self._pace += SMOOTHING * (gap - self._pace) if self._pace else gap
            self._gaps.clear()


@hookimpl
def enginebay_scheduler(options: Options, context: SchedulerContext) -> Scheduler:
    """Build the scheduler."""
    if options.max_chunk < 1:
        msg = f"scheduler.deadline: max_chunk is {options.max_chunk}; it must be 1 or more"
        raise StackError(msg)
    if not 0 < options.aging_seconds < math.inf:
        msg = (
            f"scheduler.deadline: aging_seconds is {options.aging_seconds}; it must be above 0 "
            "and finite, or requests without a deadline may wait for ever"
        )
        raise StackError(msg)
    return Deadline(options, context.limits)
