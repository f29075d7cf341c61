"""Continuous batching in which whoever generates goes first.

Each step first gives every sequence that decodes its next token; prompts get what is left
of the step's tokens, unfinished ones before new ones, in pieces of any size. Answers that
began flow evenly up to the length of a full step; a new prompt waits for its turn.
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

from .moves import advance, in_prompt, start
from .queue import Queued, WaitingQueue

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How room is made."""

    preemption: How = "cheapest"
    """What becomes of the cached positions of a sequence that gives way."""


class DecodeFirst(Queued):
    """Decodes, then unfinished prompts, then new ones; the last of these gives way."""

    def __init__(self, options: Options, limits: Limits) -> None:
        self._options = options
        self._limits = limits
        self._queue = WaitingQueue()

    def plan(self, build: StepBuilder) -> None:
        """A stable sort keeps the oldest start first on either side."""
        order = sorted(build.running, key=in_prompt)
        if not advance(build, order, how=self._options.preemption):
            start(build, self._queue, self._limits)


@hookimpl
def enginebay_scheduler(options: Options, context: SchedulerContext) -> Scheduler:
    """Build the scheduler."""
    return DecodeFirst(options, context.limits)
