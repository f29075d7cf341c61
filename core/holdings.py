"""Holdings: what an allocator answers, held against what it must mean.

A wrong answer ends the engine by the allocator's fault, instead of reading or writing
somebody else's keys and values, or of waiting for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import IntegrityError

if TYPE_CHECKING:
    from .hookspecs.allocator import Match, Reservation
    from .sequence import Sequence


class Holdings:
    """Checks one allocator's answers."""

    def __init__(self, allocator: object, num_blocks: int, block_size: int) -> None:
        self._who = f"the allocator ({type(allocator).__module__}.{type(allocator).__qualname__})"
        self._num_blocks = num_blocks
        self._block_size = block_size

    def check_match(self, match: Match, sequence: Sequence) -> Match:
        """A match leaves one token to compute, and blocks hold all its positions.

        :raises IntegrityError: it does not
        """
        count, blocks = match.num_tokens, match.block_ids
        if not 0 <= count < sequence.num_tokens:
            msg = f"{self._who} found {count} positions of {sequence.num_tokens}; at least one "
            raise IntegrityError(msg + "token must be left to compute")
        self._check(len(blocks), count, blocks, sequence)
        return match

    def check_reservation(self, answer: Reservation, sequence: Sequence, end: int) -> Reservation:
        """A reservation reaches to position ``end``, with blocks of the pool.

        :raises IntegrityError: it does not
        """
        first = answer.first
        if not 0 <= first <= len(sequence.table):
            msg = f"{self._who} changed a table of {len(sequence.table)} blocks from {first} on"
            raise IntegrityError(msg)
        self._check(first + len(answer.block_ids), end, answer.block_ids, sequence)
        return answer

    def _check(self, held: int, end: int, blocks: tuple[int, ...], sequence: Sequence) -> None:
        if held * self._block_size < end:
            msg = f"{self._who} gave sequence {sequence.id} {held} blocks for {end} positions"
            raise IntegrityError(msg)
        if blocks and not (min(blocks) >= 0 and max(blocks) < self._num_blocks):
            msg = f"{self._who} gave blocks from {min(blocks)} to {max(blocks)}"
            raise IntegrityError(f"{msg}; there are those below {self._num_blocks}")
