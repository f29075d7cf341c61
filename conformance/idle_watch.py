"""Sees when an engine stands still although something could be computed."""

from typing import Final

from enginebay.sequence import State

from .check import require
from .harness import Harness

PATIENCE: Final = 0.5
"""Seconds that a policy may plan nothing although something could be computed. Shorter
than the core's own patience, so that a policy never lives on being rescued."""


class IdleWatch:
    """Sees when nothing was planned although something could have been."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._since: float | None = None

    def look(self) -> None:
        """After each turn."""
        now = self._harness.clock()
        if self._harness.planned or not self._possible():
            self._since = None
            return
        self._since = now if self._since is None else self._since
        told = f"nothing was planned for {now - self._since:.2f} s though {self._possible()}"
        require(now - self._since <= PATIENCE, "scheduler/work-conserving", told)

    def _possible(self) -> str:
        """What could be computed now, in words; empty: nothing."""
        roster, free = self._harness.roster, self._harness.allocator.num_free
        limits = self._harness.limits
        for sequence in roster.sequences.values():
            if sequence.state is State.RUNNING and free and not sequence.stalled:
                return f"sequence {sequence.id} runs and {free} blocks are free"
            needed = -(-sequence.num_tokens // limits.block_size)
            waits = sequence.state is State.WAITING and sequence not in sequence.group.deferred
            if waits and needed <= free and len(roster.seats) < limits.max_sequences:
                return f"sequence {sequence.id} waits for {needed} of {free} free blocks"
        return ""
