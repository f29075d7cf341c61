"""Swap space: host slots that keep the KV blocks of preempted sequences.

Slot numbers only; the bytes are the KV store's. Slots are handed out and taken back
while plans are made, and plans are executed in order, so a slot may be saved to again as
soon as the plan that loads it is made.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import IntegrityError
from .flow import BlockOp

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Saved:
    """A swapped-out sequence: its first ``num_tokens`` positions, a slot a block."""

    num_tokens: int
    slots: tuple[int, ...]


class SwapSpace:
    """Host slots by sequence. Owned by the step thread."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        """:param num_slots: 0: nothing can be swapped"""
        self.num_slots = num_slots
        self._block_size = block_size
        self._free = deque(range(num_slots))
        self._saved: dict[int, Saved] = {}

    @property
    def num_used(self) -> int:
        """Slots that hold a block."""
        return self.num_slots - len(self._free)

    def num_saved(self, sequence_id: int) -> int:
        """Positions of a sequence that are kept here."""
        saved = self._saved.get(sequence_id)
        return saved.num_tokens if saved else 0

    def has_room(self, num_tokens: int) -> bool:
        """Whether so many positions could be kept."""
        return 0 < self._blocks(num_tokens) <= len(self._free)

    def save(self, sequence_id: int, table: Sequence[int], num_tokens: int) -> list[BlockOp]:
        """Keep a sequence's first positions; ``has_room`` was asked before."""
        blocks = table[: self._blocks(num_tokens)]
        slots = tuple(self._free.popleft() for _ in blocks)
        self._saved[sequence_id] = Saved(num_tokens, slots)
        return [
            BlockOp(kind="save", source=block, target=slot)
            for block, slot in zip(blocks, slots, strict=True)
        ]

    def load(self, sequence_id: int, table: Sequence[int], start: int) -> list[BlockOp]:
        """Bring back what is kept of a sequence from position ``start`` on.

        :param table: its new block table
        """
        saved = self._saved.pop(sequence_id)
        self._free.extend(saved.slots)
        first = start // self._block_size
        return [
            BlockOp(kind="load", source=slot, target=table[place])
            for place, slot in enumerate(saved.slots[first:], start=first)
        ]

    def drop(self, sequence_id: int) -> None:
        """Forget a sequence; unknown ids are ignored."""
        saved = self._saved.pop(sequence_id, None)
        if saved is not None:
            self._free.extend(saved.slots)

    def check_integrity(self) -> None:
        """Every slot is free or holds one block of one sequence."""
        held = [slot for saved in self._saved.values() for slot in saved.slots]
        if sorted([*held, *self._free]) != list(range(self.num_slots)):
            msg = f"{len(held)} slots are held and {len(self._free)} free, of {self.num_slots}"
            raise IntegrityError(msg)

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
