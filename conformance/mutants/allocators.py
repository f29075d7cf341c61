"""Allocators with one fault each, on top of the paged one."""

from collections.abc import Sequence
from typing import Final

from enginebay.flow import BlockOp, TokenIds
from enginebay.hookspecs.allocator import Match, Reservation, Shortfall
from enginebay.plugins.allocators.paged import Paged

from .caching import Caching
from .mutant import Mutant


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


class MatchesWholePrompts(Caching):
    """A prompt that is cached to its end is matched to its end."""

    def _limit(self, token_ids: TokenIds) -> int:
        return len(token_ids) // self.block_size


class IgnoresIdentity(Caching):
    """Every model, adapter and tenant shares one cache."""

    def _name(self, identity: bytes, prefix: TokenIds) -> tuple[bytes, TokenIds]:
        return b"", prefix


class ForgetsTheParent(Caching):
    """A block is known by its own tokens, whatever stood before them."""

    def _name(self, identity: bytes, prefix: TokenIds) -> tuple[bytes, TokenIds]:
        return identity, prefix[-self.block_size :]


class PublishesDrafts(Caching):
    """Tokens that are not committed are offered to others."""

    def publish(self, sequence_id: int, token_ids: Sequence[int], num_tokens: int) -> None:
        held = len(self.tables[sequence_id]) * self.block_size
        super().publish(sequence_id, token_ids, min(len(token_ids), held))


class SharesTheUnmatched(Caching):
    """What was never matched is published under an empty identity."""

    def publish(self, sequence_id: int, token_ids: Sequence[int], num_tokens: int) -> None:
        self._identities.setdefault(sequence_id, b"")
        super().publish(sequence_id, token_ids, num_tokens)


class KeepsStaleNames(Caching):
    """A block that was given to somebody else is still found under its old prefix."""

    def _taken(self) -> int:
        return Paged._taken(self)  # noqa: SLF001  past the step that forgets the name


ALLOCATOR_MUTANTS: Final = (
    Mutant("leaks a block on free", LeaksOnFree, "allocator/exhaustion"),
    Mutant("frees twice", FreesTwice, "allocator/free"),
    Mutant("forgets to copy on write", ForgetsToCopy, "allocator/copy-on-write"),
    Mutant("copies backwards", CopiesBackwards, "allocator/copy-on-write"),
    Mutant("counts the shortfall off by one", CountsOneShort, "allocator/shortfall"),
    Mutant("keeps blocks after failing", KeepsAfterFailing, "allocator/shortfall"),
    Mutant("reports a wrong first entry", ReportsWrongFirst, "allocator/table"),
    Mutant("forks without counting", ForksWithoutCounting, "allocator/fork"),
    Mutant("forks full blocks only", ForksFullBlocksOnly, "allocator/fork"),
    Mutant("trims nothing", TrimsNothing, "allocator/trim"),
    Mutant("matches whole prompts", MatchesWholePrompts, "allocator/match-leaves-one"),
    Mutant("ignores the identity", IgnoresIdentity, "allocator/match-content"),
    Mutant("forgets the parent block", ForgetsTheParent, "allocator/match-content"),
    Mutant("publishes what is not committed", PublishesDrafts, "allocator/publish"),
    Mutant("shares what was never matched", SharesTheUnmatched, "allocator/publish-unmatched"),
    Mutant("keeps the names of reused blocks", KeepsStaleNames, "allocator/conservation"),
)
