"""Imagined KV memory: each place of each block remembers which prefix was written there."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from enginebay.flow import BlockOp

Written = tuple[bytes, int]
"""Identity and hash of the tokens up to a place, that place included."""


@dataclass
class Table:
    """What one sequence must hold."""

    identity: bytes
    tokens: list[int] = field(default_factory=list)
    """Those whose places were written."""
    blocks: list[int] = field(default_factory=list)
    published: int = 0
    asked: list[int] = field(default_factory=list)
    """The tokens it was matched with: it is to publish their full blocks."""
    cached_part: bool = False
    """It was given a partly filled cached block, which its next write may have to copy."""


class Memory:
    """What was written where, by tables, and moved by block operations."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._written: dict[tuple[int, int], Written] = {}

    def write(self, table: Table, positions: Sequence[int]) -> None:
        """Write a table's tokens at some positions."""
        for position in positions:
            self._written[self._place(table, position)] = _prefix(table, position)

    def holds(self, table: Table, position: int) -> bool:
        """Whether a table's position still holds what its tokens say."""
        return self._written.get(self._place(table, position)) == _prefix(table, position)

    def copy(self, ops: Sequence[BlockOp]) -> None:
        """Copy whole blocks, in order."""
        for op in ops:
            for offset in range(self._block_size):
                self._written.pop((op.target, offset), None)
                if (op.source, offset) in self._written:
                    self._written[op.target, offset] = self._written[op.source, offset]

    def _place(self, table: Table, position: int) -> tuple[int, int]:
        return table.blocks[position // self._block_size], position % self._block_size


def _prefix(table: Table, position: int) -> Written:
    return table.identity, hash(tuple(table.tokens[: position + 1]))
