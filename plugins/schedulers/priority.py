"""Classes with aging: lower classes run earlier, and every class progresses.

A request of class p is treated as if it had come ``p * aging_seconds`` later. That key
never changes, so the queue stays cheap, and whatever arrives so much after a request can
neither overtake nor preempt it: under any load of better classes it has its turn.

A waiting request may take the seat and the blocks of running ones of lower classes,
lowest (aged) and youngest first, unless those have aged past it. The preemption's reason
is ``priority``.
"""

import math

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

from .queue import Queued, WaitingQueue
from .turns import RankedLine, Turns

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much a class counts, and how room is made."""

    aging_seconds: float = 10.0
    """How much later a request of the next lower class might have come to be treated alike."""
    preempt: bool = True
    """Whether a waiting request may take the place of running ones of lower classes."""
    max_chunk: int = 256
    """Tokens of one prompt in one step at most."""
    preemption: How = "cheapest"
    """What becomes of the cached positions of a sequence that gives way."""


class Priority(Queued):
    """Better classes first, by arrival within a class, and aging between them."""

    def __init__(self, options: Options, limits: Limits) -> None:
        self._options = options
        self._limits = limits
        self._queue = WaitingQueue(self.rank)

    def rank(self, sequence: SequenceView) -> tuple[float, float, int]:
        """By the moment at which it would have come in class 0."""
        aged = sequence.arrival + sequence.priority * self._options.aging_seconds
        return aged, sequence.arrival, sequence.id

    def may_take(self, sequence: SequenceView, victim: SequenceView) -> bool:
        """From lower classes, unless the victim has aged past it."""
        lower = self._options.preempt and victim.priority > sequence.priority
        return lower and self.rank(sequence) < self.rank(victim)

    def granted(self, sequence: SequenceView, grant: Grant, *, started: bool) -> None:
        """It keeps no accounts."""

    def plan(self, build: StepBuilder) -> None:
        """Run and start in the order of rank."""
        Turns(
            build,
            self,
            self._queue,
            RankedLine(build.running, self.rank),
            self._limits,
            max_chunk=self._options.max_chunk,
            how=self._options.preemption,
            reason="priority",
        ).play()


@hookimpl
def enginebay_scheduler(options: Options, context: SchedulerContext) -> Scheduler:
    """Build the scheduler."""
    if options.max_chunk < 1:
        msg = f"scheduler.priority: max_chunk is {options.max_chunk}; it must be 1 or more"
        raise StackError(msg)
    if not 0 < options.aging_seconds < math.inf:
        msg = (
            f"scheduler.priority: aging_seconds is {options.aging_seconds}; it must be above 0 "
            "and finite, or low classes never progress"
        )
        raise StackError(msg)
    return Priority(options, context.limits)
