"""Continuous batching, first come first served, with whole prompts.

Work is put together anew at each step (Yu et al., Orca, OSDI 2022): whoever ended makes
room at once, and each takes what it needs in the order of arrival. A prompt is computed
in one step; it waits for a step that has room for it, and nobody behind overtakes it. One
that is longer than any step goes in pieces as large as the steps allow.
"""

import msgspec

from enginebay import hookimpl
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import (
    How,
    Scheduler,
    SchedulerContext,
    StepBuilder,
)

from .moves import advance, start
from .queue import Queued, WaitingQueue, by_arrival

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How room is made."""

    preemption: How = "cheapest"
    """What becomes of the cached positions of a sequence that gives way."""


class Fcfs(Queued):
    """Strictly by arrival, prompts and decodes alike; the youngest gives way."""

    def __init__(self, options: Options, limits: Limits) -> None:
        self._options = options
        self._limits = limits
        self._queue = WaitingQueue()

    def plan(self, build: StepBuilder) -> None:
        """Run what runs by arrival, then start whole prompts, unless memory is short."""
        running = sorted(build.running, key=by_arrival)
        if not advance(build, running, how=self._options.preemption):
            start(build, self._queue, self._limits, whole=True)


@hookimpl
def enginebay_scheduler(options: Options, context: SchedulerContext) -> Scheduler:
    """Build the scheduler."""
    return Fcfs(options, context.limits)
