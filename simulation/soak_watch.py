"""What must hold after every turn of a world's engine."""

from typing import Final

from enginebay.conformance.check import require
from enginebay.conformance.harness import Harness
from enginebay.sequence import Sequence, State

from .soak_world import World

PATIENCE: Final = 0.6
"""Seconds that nothing may be planned although something could be computed: less than the
core's own patience, so that no policy lives on being rescued."""
BARREN: Final = 5.0
"""Seconds in which something must be planned, or somebody must come or go."""
MOST_AT_ONCE: Final = 5
"""Tokens that one step may draw for a sequence: four drafted, and one."""


class StepWatch:
    """Looks at an engine after each turn."""

    def __init__(self, world: World, harness: Harness) -> None:
        self._world = world
        self._harness = harness
        self._idle_since: float | None = None
        self._moved: tuple[float, tuple[int, int]] = 0.0, (0, 0)
        """When the engine last got on, and how far it was."""

    def look(self) -> None:
        """:raises Broken, IntegrityError: a rule does not hold"""
        harness = self._harness
        harness.allocator.check_integrity()
        harness.scheduler.check_integrity()
        harness.engine.blocks.swap.check_integrity()
        self._check_blocks()
        self._check_queue()
        self._check_windows()
        self._check_progress()
        self._check_work()

    def _check_blocks(self) -> None:
        """What seats hold is held; when nobody sits, nothing is."""
        harness, size = self._harness, self._world.limits.block_size
        used = self._world.limits.num_blocks - harness.allocator.num_free
        held: set[int] = set()
        for sequence in harness.roster.seats.values():
            held.update(sequence.table[: -(-sequence.num_computed // size)])
        told = f"seats hold {len(held)} blocks and {used} are not free"
        require(len(held) <= used, "soak/blocks", told)
        if not harness.roster.seats:
            require(used == 0, "soak/blocks", f"{used} blocks are held and nobody sits")

    def _check_queue(self) -> None:
        """Who waits in the engine waits in the policy."""
        waiting = sum(_queued(s, self._harness) for s in self._harness.roster.sequences.values())
        counted = self._harness.scheduler.num_waiting()
        told = f"the policy counts {counted} waiting, the engine gave it {waiting}"
        require(counted == waiting, "soak/queue", told)

    def _check_windows(self) -> None:
        """No reader is further behind than its window and what was under way."""
        for sequence in self._harness.roster.seats.values():
            window = sequence.group.request.window
            behind = sequence.num_generated - sequence.num_written
            if window and behind >= window + MOST_AT_ONCE * self._world.depth:
                told = f"sequence {sequence.id} is {behind} tokens ahead of a window of {window}"
                require(False, "soak/window", told)

    def _check_progress(self) -> None:
        """Something is planned, or somebody comes or goes, while anybody is here."""
        harness = self._harness
        now, far = harness.clock(), (harness.executor.num_plans, harness.roster.num_ended)
        if far != self._moved[1] or not harness.roster.sequences:
            self._moved = now, far
        told = f"nothing came of {BARREN:g} s with {len(harness.roster.sequences)} sequences here"
        require(now - self._moved[0] <= BARREN, "soak/progress", told)

    def _check_work(self) -> None:
        """Nothing is held back for longer than the patience while it could be computed."""
        now = self._harness.clock()
        if self._harness.planned or not self._possible():
            self._idle_since = None
            return
        self._idle_since = now if self._idle_since is None else self._idle_since
        idle = now - self._idle_since
        told = f"nothing was planned for {idle:.2f} s although {self._possible()}"
        require(idle <= PATIENCE, "soak/work-conserving", told)

    def _possible(self) -> str:
        """What could be computed now, in words; empty: nothing."""
        roster, free = self._harness.roster, self._harness.allocator.num_free
        limits = self._world.limits
        for sequence in roster.sequences.values():
            if sequence.state is State.RUNNING and free and not sequence.stalled:
                return f"sequence {sequence.id} runs and {free} blocks are free"
            needed = -(-sequence.num_tokens // limits.block_size)
            roomy = needed <= free and len(roster.seats) < limits.max_sequences
            if roomy and _queued(sequence, self._harness) and not sequence.stalled:
                return f"sequence {sequence.id} waits for {needed} of {free} free blocks"
        return ""


def _queued(sequence: Sequence, harness: Harness) -> bool:
    """Whether it waits in the policy's queue."""
    waits = sequence.state is State.WAITING and sequence not in sequence.group.deferred
    return waits and sequence.id not in harness.roster.parked
