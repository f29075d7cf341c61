"""Allocators with one fault each in how they name blocks, on top of the shipped one."""

from typing import Final

from enginebay.hookspecs.allocator import Match
from enginebay.plugins.allocators.paged import Paged
from enginebay.plugins.allocators.prefix_hash import HashIndex
from enginebay.plugins.allocators.reuse import Reusing

from .reuse import Fault


class Hashing(Reusing):
    """The right one: names are chained hashes."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size, HashIndex(block_size))


class KeepsTrimmedNames(Hashing):
    """Blocks of trimmed tokens keep the names that were made for them."""

    def trim(self, sequence_id: int, num_tokens: int) -> None:
        Paged.trim(self, sequence_id, num_tokens)


class KeepsParentsNames(Hashing):
    """A fork goes on under the names of what its parent wrote."""

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> Match:
        match = super().fork(parent_id, child_id, num_tokens)
        if parent_id in self._trails:
            self._trails[child_id].keys = list(self._trails[parent_id].keys)
        return match


class LosesTwins(Hashing):
    """When the first of two equal blocks is given back, nobody takes its place."""

    def _unfound(self, block: int) -> None:
        while self._twins.has(block):
            self._twins.remove(self._twins._alike[block][0])  # noqa: SLF001
        super()._unfound(block)


NAMING_FAULTS: Final[tuple[Fault, ...]] = (
    ("keeps the names of trimmed tokens", KeepsTrimmedNames, "allocator/rewritten"),
    ("names a fork's blocks as its parent's", KeepsParentsNames, "allocator/rewritten"),
    ("loses what two computed", LosesTwins, "allocator/twins"),
)
