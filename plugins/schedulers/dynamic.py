"""Dynamic batching: arrivals are collected for a short window, then start together.

A batch is formed as soon as it is full, or when the first who waits has waited for the
window; then it runs like a static one, until its slowest member ends. That is what batchers
of request-level servers do. Work is never held back for longer than the window while
nothing runs; while a batch runs, those who wait fill the next one.
"""

from typing import Final

import msgspec

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import How, Scheduler, SchedulerContext, StepBuilder

from .static import Static

CONTRACT = (1, 0)
LONGEST_WINDOW: Final = 0.5
"""Seconds. The core starts the oldest itself when nothing is planned for a second."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a batch is formed, and how room is made."""

    batch_size: int = 8
    """Sequences in a batch at most; so many start without waiting for more."""
    window_seconds: float = 0.02
    """How long the first who waits waits for others, 0.5 at most."""
    preemption: How = "cheapest"
    """What becomes of the cached positions of a sequence that gives way."""


class Dynamic(Static):
    """Static batches that wait for each other's members, for a while."""

    def __init__(self, options: Options, limits: Limits) -> None:
        super().__init__(options.batch_size, options.preemption, limits)
        self._window = options.window_seconds

    def _ripe(self, build: StepBuilder) -> bool:
        """It is full, or its window has passed."""
        first = self._queue.first()
        full = len(self._queue) >= self._batch_size
        return full or (first is not None and build.now - first.arrival >= self._window)


@hookimpl
def enginebay_scheduler(options: Options, context: SchedulerContext) -> Scheduler:
    """Build the scheduler."""
    if options.batch_size < 1:
        msg = f"scheduler.dynamic: batch_size is {options.batch_size}; it must be 1 or more"
        raise StackError(msg)
    if not 0 <= options.window_seconds <= LONGEST_WINDOW:
        msg = (
            f"scheduler.dynamic: window_seconds is {options.window_seconds}; "
            f"it must be between 0 and {LONGEST_WINDOW}"
        )
        raise StackError(msg)
    return Dynamic(options, context.limits)
