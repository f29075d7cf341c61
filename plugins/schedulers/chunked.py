"""Continuous batching with chunked prefill, first come first served.

Each step first advances what runs (decodes and unfinished prompts, oldest first), then
starts waiting requests with what is left of the step's tokens, a bounded piece of each
prompt at a time (Agrawal et al., Sarathi-Serve, arXiv 2403.02310). When memory runs
out, the youngest gives way and is computed again later.
"""

import heapq

import msgspec

from enginebay import hookimpl
from enginebay.errors import IntegrityError, StackError
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import (
    Grant,
    Scheduler,
    SchedulerContext,
    SequenceView,
    StepBuilder,
)

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How prompts are cut."""

    max_chunk: int = 256
    """Tokens of one prompt in one step at most."""


class Chunked:
    """First come, first served; prompts ride along with decodes in pieces."""

    def __init__(self, options: Options, limits: Limits) -> None:
        self._max_chunk = options.max_chunk
        self._limits = limits
        self._queue: list[tuple[float, int]] = []
        self._waiting: dict[int, SequenceView] = {}

    def add(self, sequence: SequenceView) -> None:
        """Queue by arrival, so that a preempted sequence comes back in front."""
        self._waiting[sequence.id] = sequence
        heapq.heappush(self._queue, (sequence.arrival, sequence.id))

    def plan(self, build: StepBuilder) -> None:
        """Run what runs, then start what fits; nobody takes the place of one that was
        preempted in the same step, for that one came earlier."""
        running = list(build.running)
        preempted = False
        while running:
            sequence = running.pop(0)
            while self._run(build, sequence).reason == "blocks":
                victim = running.pop() if running else None
                if victim is None or not build.preempt(victim):
                    return
                preempted = True
        while self._waiting and not preempted:
            sequence = self._first()
            if not self._fits(build, sequence):
                build.wait(sequence, "blocks")
                return
            if not build.start(sequence, self._max_chunk):
                return
            heapq.heappop(self._queue)
            del self._waiting[sequence.id]

    def remove(self, sequence_id: int) -> None:
        """Forget a sequence; its place in the heap is skipped when it comes up."""
        self._waiting.pop(sequence_id, None)
        if not self._waiting:
            self._queue.clear()

    def num_waiting(self) -> int:
        """Sequences not started."""
        return len(self._waiting)

    def check_integrity(self) -> None:
        """Every waiting sequence stands in the queue."""
        queued = {place[1] for place in self._queue}
        lost = self._waiting.keys() - queued
        if lost:
            msg = f"waiting sequences {sorted(lost)[:8]} are not in the queue"
            raise IntegrityError(msg)

    def _run(self, build: StepBuilder, sequence: SequenceView) -> Grant:
        return build.run(sequence, self._max_chunk)

    def _first(self) -> SequenceView:
        while self._queue[0][1] not in self._waiting:
            heapq.heappop(self._queue)
        return self._waiting[self._queue[0][1]]

    def _fits(self, build: StepBuilder, sequence: SequenceView) -> bool:
        """Blocks for the whole prompt, or nothing else runs: starting what can't end its
        prompt would only preempt somebody."""
        needed = -(-sequence.num_tokens // self._limits.block_size)
        alone = build.seats_left == self._limits.max_sequences
        return alone or build.blocks_left >= needed


@hookimpl
def enginebay_scheduler(options: Options, context: SchedulerContext) -> Scheduler:
    """Build the scheduler."""
    if options.max_chunk < 1:
        msg = f"scheduler.chunked: max_chunk is {options.max_chunk}; it must be 1 or more"
        raise StackError(msg)
    return Chunked(options, context.limits)
