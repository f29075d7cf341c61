"""Allocators with one fault each in prefix reuse, on top of ``Caching``."""

from collections.abc import Callable, Sequence
from typing import Final

from enginebay.flow import TokenIds
from enginebay.hookspecs.allocator import Allocator, Match, Reservation, Shortfall
from enginebay.plugins.allocators.paged import Paged

from .caching import Caching


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


class EvictsParentsFirst(Caching):
    """A sequence gives its first blocks back first, so a prefix loses its beginning."""

    def free(self, sequence_id: int) -> None:
        self.tables.get(sequence_id, []).reverse()
        super().free(sequence_id)


class EvictsNewestFirst(Caching):
    """What was used last is evicted first."""

    def _next(self) -> int:
        return next((b for b in self._free if b not in self._names), self._free[-1])


class EvictsBeforeFree(Caching):
    """Cached blocks are given out although free ones are left."""

    def _next(self) -> int:
        return next((b for b in self._free if b in self._names), self._free[0])


class EvictsHeldBlocks(Caching):
    """A cached block that was found stays in the list of those to give out."""

    def match(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> Match:
        match = super().match(sequence_id, identity, token_ids)
        self._free.extend(b for b in match.block_ids if self._counts[b] == 1)
        return match

    def check_integrity(self) -> None:
        """It would not notice, either."""


class NeverEvicts(Caching):
    """Cached blocks are kept for ever."""

    @property
    def num_free(self) -> int:
        return len(self._free) - self.num_cached


class ForgetsOnFree(Caching):
    """Nothing is found of a sequence that left."""

    def _dropped(self, block: int) -> None:
        super()._dropped(block)
        if not self._counts[block]:
            self._forget(block)


class ForgetsGenerated(Caching):
    """Only the tokens that a sequence was matched with are published."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._lengths: dict[int, int] = {}

    def match(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> Match:
        self._lengths[sequence_id] = len(token_ids)
        return super().match(sequence_id, identity, token_ids)

    def publish(self, sequence_id: int, token_ids: Sequence[int], num_tokens: int) -> None:
        length = self._lengths.get(sequence_id, 0)
        super().publish(sequence_id, token_ids, min(num_tokens, length))


class KeepsNamesOfRewritten(Caching):
    """A named block that is written in place keeps its name."""

    def reserve(self, sequence_id: int, start: int, end: int) -> Reservation | Shortfall:
        return Paged.reserve(self, sequence_id, start, end)


class CountsHeldAsCached(Caching):
    """Blocks that are held and have a name are counted as cached."""

    @property
    def num_cached(self) -> int:
        return len(self._names)


class KeepsPromises(Caching):
    """A sequence that left is still expected to publish."""

    def free(self, sequence_id: int) -> None:
        promised, identity = self._promised.get(sequence_id), self._identities.get(sequence_id)
        super().free(sequence_id)
        if promised is not None and identity is not None:
            self._promised[sequence_id], self._identities[sequence_id] = promised, identity


class WaitsForStrangers(Caching):
    """What another identity computes is waited for."""

    def pending(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> int:
        identities = self._identities
        self._identities = dict.fromkeys(identities, identity)
        told = super().pending(sequence_id, identity, token_ids)
        self._identities = identities
        return told


class CountsWhatIsFound(Caching):
    """Blocks that are there already are waited for."""

    def pending(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> int:
        found = len(self._find(identity, token_ids)) * self.block_size
        return found + super().pending(sequence_id, identity, token_ids)


class WaitsForPartialBlocks(Caching):
    """A block that parts half way is waited for."""

    def _alike(self, tokens: TokenIds, others: TokenIds, num_blocks: int) -> bool:
        end = num_blocks * self.block_size - self.block_size // 2
        return len(others) >= end and tokens[:end] == others[:end]


Fault = tuple[str, Callable[[int, int], Allocator], str]

REUSE_FAULTS: Final[tuple[Fault, ...]] = (
    ("matches whole prompts", MatchesWholePrompts, "allocator/match-leaves-one"),
    ("ignores the identity", IgnoresIdentity, "allocator/match-content"),
    ("forgets the parent block", ForgetsTheParent, "allocator/match-content"),
    ("publishes what is not committed", PublishesDrafts, "allocator/publish"),
    ("shares what was never matched", SharesTheUnmatched, "allocator/publish-unmatched"),
    ("keeps the names of reused blocks", KeepsStaleNames, "allocator/conservation"),
    ("keeps the names of rewritten blocks", KeepsNamesOfRewritten, "allocator/rewritten"),
    ("evicts parents before children", EvictsParentsFirst, "allocator/eviction"),
    ("evicts the newest first", EvictsNewestFirst, "allocator/eviction"),
    ("evicts while blocks are free", EvictsBeforeFree, "allocator/eviction"),
    ("evicts held blocks", EvictsHeldBlocks, "allocator/reclaim"),
    ("never evicts", NeverEvicts, "allocator/reclaim"),
    ("forgets what its sequence frees", ForgetsOnFree, "allocator/reuse"),
    ("counts held blocks as cached", CountsHeldAsCached, "allocator/reuse"),
    ("forgets generated tokens", ForgetsGenerated, "allocator/resume"),
    ("expects what will never come", KeepsPromises, "allocator/pending"),
    ("waits for strangers", WaitsForStrangers, "allocator/pending"),
    ("waits for what is there", CountsWhatIsFound, "allocator/pending"),
    ("waits for blocks that part", WaitsForPartialBlocks, "allocator/pending"),
)
