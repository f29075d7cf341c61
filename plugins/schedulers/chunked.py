"""Continuous batching with chunked prefill, first come first served.

Each step first advances what runs (decodes and unfinished prompts, oldest first), then
starts waiting requests with what is left of the step's tokens, a bounded piece of each
prompt at a time (Agrawal et al., Sarathi-Serve, arXiv 2403.02310). When memory runs
out, the youngest gives way and comes back later.
"""

import msgspec

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import (
    How,
    Scheduler,
    SchedulerContext,
    StepBuilder,
)

from .moves import advance, start
from .queue import Queued, WaitingQueue

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How prompts are cut, and how room is made."""

    max_chunk: int = 256
    """Tokens of one prompt in one step at most."""
    preemption: How = "cheapest"
    """What becomes of the cached positions of a sequence that gives way."""


class Chunked(Queued):
    """First come, first served; prompts ride along with decodes in pieces."""

    def __init__(self, options: Options, limits: Limits) -> None:
        self._options = options
        self._limits = limits
        self._queue = WaitingQueue()

    def plan(self, build: StepBuilder) -> None:
        """Run what runs, then start what fits, unless memory is short."""
        chunk = self._options.max_chunk
        if not advance(build, build.running, chunk, self._options.preemption):
            start(build, self._queue, self._limits, chunk)


@hookimpl
def enginebay_scheduler(options: Options, context: SchedulerContext) -> Scheduler:
    """Build the scheduler."""
    if options.max_chunk < 1:
        msg = f"scheduler.chunked: max_chunk is {options.max_chunk}; it must be 1 or more"
        raise StackError(msg)
    return Chunked(options, context.limits)
