"""Static batching: a batch is locked until its slowest member ends. The baseline.

When the last member of a batch has ended, those who wait become the next batch, in the
order of their arrival and up to its size; it starts at once with as many as are there.
Whoever comes meanwhile waits, however many seats stand empty. Later choices of a request
come when its prompt is computed, so they wait for a batch like anybody else.
"""

import msgspec

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import (
    How,
    Scheduler,
    SchedulerContext,
    SequenceView,
    StepBuilder,
)

from .moves import advance, start
from .queue import WaitingQueue

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How large a batch is, and how room is made."""

    batch_size: int = 8
    """Sequences in a batch at most."""
    preemption: How = "cheapest"
    """What becomes of the cached positions of a sequence that gives way."""


class Static:
    """One batch at a time; who gave way comes back into it."""

    def __init__(self, batch_size: int, preemption: How, limits: Limits) -> None:
        self._batch_size = min(batch_size, limits.max_sequences)
        self._preemption = preemption
        self._limits = limits
        self._queue = WaitingQueue()
        self._batch = WaitingQueue()
        """Members of the batch that have no seat: not started yet, or preempted."""

    def add(self, sequence: SequenceView) -> None:
        """Queue by arrival; a preempted sequence is a member already."""
        (self._batch if sequence.num_preemptions else self._queue).add(sequence)

    def plan(self, build: StepBuilder) -> None:
        """Run the batch and start what of it has not begun; form one if there is none."""
        short = advance(build, build.running, how=self._preemption)
        if not self._locked(build) and self._ripe(build):
            self._form()
        if not short:
            start(build, self._batch, self._limits)
        if (first := self._queue.first()) is not None:
            build.wait(first, "batch")

    def remove(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self._queue.remove(sequence_id)
        self._batch.remove(sequence_id)

    def num_waiting(self) -> int:
        """Sequences not started."""
        return len(self._queue) + len(self._batch)

    def check_integrity(self) -> None:
        """Every waiting sequence stands in one of the queues."""
        self._queue.check_integrity()
        self._batch.check_integrity()

    def _locked(self, build: StepBuilder) -> bool:
        """Whether a member waits for its seat, or holds one and goes on. One whose reader
        is behind keeps nobody waiting."""
        seated = self._limits.max_sequences - build.seats_left
        return len(self._batch) > 0 or seated > len(build.stalled)

    def _ripe(self, build: StepBuilder) -> bool:
        """Whether the next batch may be formed."""
        return True

    def _form(self) -> None:
        """The first who wait become the batch."""
        while len(self._batch) < self._batch_size and (first := self._queue.first()):
            self._queue.remove(first.id)
            self._batch.add(first)


@hookimpl
def enginebay_scheduler(options: Options, context: SchedulerContext) -> Scheduler:
    """Build the scheduler."""
    if options.batch_size < 1:
        msg = f"scheduler.static: batch_size is {options.batch_size}; it must be 1 or more"
        raise StackError(msg)
    return Static(options.batch_size, options.preemption, context.limits)
