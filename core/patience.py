"""Patience: how long it is worth waiting for a prefix that somebody else computes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

STEPS: Final = 8
"""Steps that may pass without progress."""
LEAST_SHARE: Final = 1 / 16
"""Of a step's tokens: progress at this pace or above is waited for as long as it lasts."""
MOST_REST: Final = 8
"""Steps in a row in which one that waits is not asked about."""


@dataclass(slots=True)
class _Wait:
    """Of one sequence."""

    identity: bytes
    pending: int
    left: float
    """Steps that it waits even if nothing comes of them; none: it gave up for good."""
    rest: int = 0
    """Steps in which it need not be asked about."""


class Patience:
    """Bounds every wait: whoever computes the prefix may be scheduled far behind the one
    that waits, or hardly at all.

    Each step that is waited costs one, and each position that becomes available earns
    back what it costs at the least pace. So a wait lasts no longer than that pace would
    take, and the spare steps. When one gives up and computes the prefix itself, the
    others with the same cache identity may wait for that one, with new patience.

    To ask an allocator costs time in the length of the prompt. So one that lacks what two
    steps can't compute rests for half of the steps that this takes at least.
    """

    def __init__(self, block_size: int, max_step_tokens: int) -> None:
        self._max_step_tokens = max_step_tokens
        self._pace = max_step_tokens * LEAST_SHARE
        self._most = STEPS + block_size / self._pace
        self._waits: dict[int, _Wait] = {}

    def resting(self, sequence_id: int) -> bool:
        """Whether what was found of a sequence last still does."""
        wait = self._waits.get(sequence_id)
        return wait is not None and wait.rest > 0

    def rest(self, sequence_id: int) -> None:
        """A step passed in which a sequence rested."""
        wait = self._waits[sequence_id]
        wait.rest -= 1
        wait.left -= 1

    def lasts(self, sequence_id: int, identity: bytes, pending: int) -> bool:
        """Whether a sequence waits for one more step.

        :param pending: positions that are still to come, above 0
        """
        wait = self._waits.get(sequence_id)
        if wait is None:
            wait = self._waits[sequence_id] = _Wait(identity, pending, self._most)
        if wait.left <= 0:
            return False
        earned = max(wait.pending - pending, 0) / self._pace
        wait.left = min(wait.left + earned, self._most) - 1
        wait.pending = pending
        if wait.left <= 0:
            self._renew(identity)
            return False
        least = pending // (2 * self._max_step_tokens)
        wait.rest = min(least, MOST_REST, math.ceil(wait.left) - 1)
        return True

    def drop(self, sequence_id: int) -> None:
        """A sequence left; unknown ids are ignored."""
        self._waits.pop(sequence_id, None)

    def _renew(self, identity: bytes) -> None:
        for wait in self._waits.values():
            if wait.identity == identity and wait.left > 0:
                wait.left = self._most
