"""Drafting: lets a drafter guess tokens after commit and before plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .hookspecs.drafter import Drafter
    from .sequence import Sequence

log = structlog.get_logger(__name__)


class Drafting:
    """Holds a drafter; when it raises it is switched off and named."""

    def __init__(self, name: str, drafter: Drafter, num_drafts: int, vocab_size: int) -> None:
        self.name = name
        self.switched_off = False
        self._drafter = drafter
        self._num_drafts = num_drafts
        self._vocab_size = vocab_size

    def propose(self, sequences: Iterable[Sequence]) -> None:
        """Give every sequence that only waits for its next token up to k guesses."""
        ready = [s for s in sequences if s.num_tokens - s.num_computed == 1 and not s.drafts]
        if self.switched_off or not ready:
            return
        try:
            proposals = self._drafter.propose(ready, self._num_drafts)
            for sequence, drafts in zip(ready, proposals, strict=True):
                sequence.drafts = self._usable(sequence, drafts)
        except Exception:
            log.exception("drafter switched off", drafter=self.name)
            self.switched_off = True
            for sequence in ready:
                sequence.drafts = ()

    def _usable(self, sequence: Sequence, drafts: tuple[int, ...]) -> tuple[int, ...]:
        """No more than may still be generated; ids within the vocabulary."""
        room = sequence.max_tokens - sequence.num_generated - 1
        drafts = tuple(drafts)[: max(min(self._num_drafts, room), 0)]
        if any(not 0 <= token < self._vocab_size for token in drafts):
            msg = f"drafted a token outside the vocabulary of {self._vocab_size}"
            raise ValueError(msg)
        return drafts
