"""Continuous batching in which new prompts go first, whole, in steps of their own.

While a waiting prompt finds a seat and memory, a step computes prompts and nothing else,
as the first versions of vLLM did (Kwon et al., arXiv 2309.06180). The first token comes as
early as it can; whoever generates meanwhile stands still for as long as the prompts take.
A prompt that is longer than a step takes several in a row.
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

from .moves import advance, in_prompt, start
from .queue import Queued, WaitingQueue

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long prompts may keep the others waiting, and how room is made."""

    max_prompt_steps: int = 64
    """Steps of prompts in a row at most; then those that generate get one."""
    preemption: How = "cheapest"
    """What becomes of the cached positions of a sequence that gives way."""


class PrefillFirst(Queued):
    """Unfinished prompts, then new ones; decodes in the steps that have none."""

    def __init__(self, options: Options, limits: Limits) -> None:
        self._options = options
        self._limits = limits
        self._queue = WaitingQueue()
        self._prompt_steps = 0
        """Steps of prompts since the last one of decodes."""

    def plan(self, build: StepBuilder) -> None:
        """A step of prompts, unless there are none or it is the others' turn."""
        how, running, before = self._options.preemption, build.running, build.tokens_left
        prompts = [sequence for sequence in running if in_prompt(sequence)]
        decodes = [sequence for sequence in running if not in_prompt(sequence)]
        owed = self._prompt_steps >= self._options.max_prompt_steps
        if not (owed and decodes) and not advance(build, prompts, how=how, victims=running):
            start(build, self._queue, self._limits, whole=True)
        if build.tokens_left < before:
            self._prompt_steps += 1
            return
        self._prompt_steps = 0
        advance(build, decodes, how=how, victims=running)


@hookimpl
def enginebay_scheduler(options: Options, context: SchedulerContext) -> Scheduler:
    """Build the scheduler."""
    if options.max_prompt_steps < 1:
        msg = (
            f"scheduler.prefill-first: max_prompt_steps is {options.max_prompt_steps}; "
            "it must be 1 or more"
        )
        raise StackError(msg)
    return PrefillFirst(options, context.limits)
