"""Allocators with one fault each, on top of the paged one, and those of prefix reuse."""

from typing import Final

from enginebay.flow import BlockOp
from enginebay.hookspecs.allocator import Match, Reservation, Shortfall
from enginebay.plugins.allocators.contiguous import Contiguous
from enginebay.plugins.allocators.paged import Paged

from ..block_traits import any_length
from .mutant import Mutant
from .naming import NAMING_FAULTS
from .reuse import REUSE_FAULTS


class LeaksOnFree(Paged):
    """The last block of a freed sequence never comes back."""

    def free(self, sequence_id: int) -> None:
        table = self.tables.pop(sequence_id, [])
        for block in table[:-1]:
            self._dropped(block)
        for block in table[-1:]:
            self._counts[block] = 0


class FreesTwice(Paged):
    """A second ``free`` gives the same blocks back again."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.gone: dict[int, list[int]] = {}

    def free(self, sequence_id: int) -> None:
        self._free.extend(self.gone.get(sequence_id, ()))
        self.gone[sequence_id] = self.tables.get(sequence_id, [])
        super().free(sequence_id)


class ForgetsToCopy(Paged):
    """A shared block is written in place."""

    def reserve(self, sequence_id: int, start: int, end: int) -> Reservation | Shortfall:
        table = self.tables.setdefault(sequence_id, [])
        grown = max(-(-end // self.block_size) - len(table), 0)
        if grown > len(self._free):
            return Shortfall(missing=grown - len(self._free))
        first = len(table)
        table.extend(self._taken() for _ in range(grown))
        return Reservation(first=first, block_ids=tuple(table[first:]))


class CopiesBackwards(Paged):
    """The copy goes from the fresh block to the shared one."""

    def _copied(self, table: list[int], place: int) -> BlockOp:
        op = super()._copied(table, place)
        return BlockOp(kind="copy", source=op.target, target=op.source)


class CountsOneShort(Paged):
    """Says that one block more is missing than is."""

    def reserve(self, sequence_id: int, start: int, end: int) -> Reservation | Shortfall:
        answer = super().reserve(sequence_id, start, end)
        return Shortfall(missing=answer.missing + 1) if isinstance(answer, Shortfall) else answer


class KeepsAfterFailing(Paged):
    """A reservation that fails keeps the blocks it got so far."""

    def reserve(self, sequence_id: int, start: int, end: int) -> Reservation | Shortfall:
        answer = super().reserve(sequence_id, start, end)
        if isinstance(answer, Shortfall) and self._free:
            self.tables.setdefault(sequence_id, []).append(self._taken())
        return answer


class ReportsWrongFirst(Paged):
    """``first`` is one entry too far."""

    def reserve(self, sequence_id: int, start: int, end: int) -> Reservation | Shortfall:
        answer = super().reserve(sequence_id, start, end)
        if isinstance(answer, Shortfall) or not answer.block_ids:
            return answer
        return Reservation(first=answer.first + 1, block_ids=answer.block_ids, ops=answer.ops)


class ForksWithoutCounting(Paged):
    """A fork shares blocks and counts them once."""

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> Match:
        blocks = self.tables[parent_id][: -(-num_tokens // self.block_size)]
        self.tables[child_id] = list(blocks)
        return Match(num_tokens=num_tokens, block_ids=tuple(blocks))

    def check_integrity(self) -> None:
        """It would not notice, either."""


class ForksFullBlocksOnly(Paged):
    """A partly filled last block is left out of a fork, though its tokens are counted."""

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> Match:
        match = super().fork(parent_id, child_id, num_tokens)
        full = num_tokens // self.block_size
        for block in self.tables[child_id][full:]:
            self._dropped(block)
        del self.tables[child_id][full:]
        return Match(num_tokens=num_tokens, block_ids=match.block_ids[:full])


class TrimsNothing(Paged):
    """Blocks of rejected drafts stay with the sequence."""

    def trim(self, sequence_id: int, num_tokens: int) -> None:
        """Nothing is given back."""


class TakesTooMuch(Paged):
    """A table that grows gets a block more than it needs."""

    def reserve(self, sequence_id: int, start: int, end: int) -> Reservation | Shortfall:
        return super().reserve(sequence_id, start, end + self.block_size if start else end)


class Overlapping(Contiguous):
    """Two regions have a block in common."""

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        super().__init__(num_blocks, block_size, max_model_len)
        for number, region in enumerate(self.regions[1:], start=1):
            self.regions[number] = range(region.start - 1, region.stop - 1)


class TooShort(Contiguous):
    """Its regions hold sequences of half the length."""

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        super().__init__(num_blocks, block_size, max(max_model_len // 2, 1))


class LosesARegion(Contiguous):
    """Every other sequence keeps its region for ever."""

    def free(self, sequence_id: int) -> None:
        if sequence_id % 2:
            self.holders.pop(sequence_id, None)
        else:
            super().free(sequence_id)

    def check_integrity(self) -> None:
        """It would not notice, either."""


_FAULTS: Final = (
    ("leaks a block on free", LeaksOnFree, "allocator/exhaustion"),
    ("frees twice", FreesTwice, "allocator/free"),
    ("forgets to copy on write", ForgetsToCopy, "allocator/copy-on-write"),
    ("copies backwards", CopiesBackwards, "allocator/copy-on-write"),
    ("counts the shortfall off by one", CountsOneShort, "allocator/shortfall"),
    ("keeps blocks after failing", KeepsAfterFailing, "allocator/shortfall"),
    ("reports a wrong first entry", ReportsWrongFirst, "allocator/table"),
    ("takes more than it needs when it grows", TakesTooMuch, "allocator/table"),
    ("forks without counting", ForksWithoutCounting, "allocator/fork"),
    ("forks full blocks only", ForksFullBlocksOnly, "allocator/fork"),
    ("trims nothing", TrimsNothing, "allocator/trim"),
)

ALLOCATOR_MUTANTS: Final = (
    *(Mutant(fault, any_length(make), caught) for fault, make, caught in _FAULTS),
    *(
        Mutant(fault, any_length(make), caught)
        for fault, make, caught in (*REUSE_FAULTS, *NAMING_FAULTS)
    ),
    Mutant("gives a region that overlaps another", Overlapping, "allocator/conservation"),
    Mutant("gives regions for too short sequences", TooShort, "allocator/shortfall"),
    Mutant("loses a region", LosesARegion, "allocator/conservation"),
)
