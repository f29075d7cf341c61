"""Prefix reuse over block tables: published full blocks stay findable until evicted.

How blocks are named and looked up is an ``Index``; everything else is here: who holds
what, which blocks nobody holds and may be evicted, and what is about to be published.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

from enginebay.errors import IntegrityError
from enginebay.flow import TokenIds
from enginebay.hookspecs.allocator import Match, Reservation, Shortfall

from .paged import Paged
from .promises import Key, Promises, Trail
from .twins import Twins


class Index(Protocol):
    """Findable blocks by what is in them and before them."""

    def key(self, identity: bytes, keys: Sequence[Key], token_ids: Sequence[int]) -> Key:
        """The name of a full block that follows those named ``keys``."""

    def find(self, identity: bytes, keys: Sequence[Key]) -> list[int]:
        """Blocks of the longest known prefix."""

    def enter(self, trail: Trail, place: int, block: int, before: int | None) -> int:
        """Make a block findable as entry ``place`` of a trail.

        :param before: the findable block that it follows
        :return: the block that stands for it: itself, or an older one with its content
        """

    def replace(self, block: int, other: int) -> None:
        """Let another block with the same content stand for one."""

    def forget(self, block: int) -> Iterable[int]:
        """Make a block unfindable. :return: those that can't be found without it"""

    def __contains__(self, block: int) -> bool: ...
    def blocks(self) -> Iterable[int]:
        """Every findable block."""

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` when its books don't agree."""


class Reusing(Paged):
    """Tables over one pool, whose published blocks others can begin with.

    A block is held by tables, cached (findable, held by nobody) or free. Who holds a
    findable block also holds all before it, or twins of them; a sequence gives its last
    blocks back first. So the longest unheld block is never followed by a held or a longer
    unheld one, and eviction in that order takes children before their parents.
    """

    def __init__(self, num_blocks: int, block_size: int, index: Index) -> None:
        super().__init__(num_blocks, block_size)
        self.num_evicted = 0
        self.index = index
        self._cached: OrderedDict[int, None] = OrderedDict()
        """Longest unheld first: that is evicted next."""
        self._twins = Twins()
        self._trails: dict[int, Trail] = {}
        """Of sequences that were matched, or forked from one that was."""
        self._asked: dict[int, tuple[TokenIds, Trail]] = {}
        """Of sequences that were asked about and not matched yet."""
        self._promises = Promises()

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and that can be found."""
        return len(self._cached)

    def pending(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> int:
        """Positions past those found now that running sequences will publish."""
        trail = self._named(sequence_id, identity, token_ids)
        self._asked[sequence_id] = token_ids, trail
        keys = trail.keys[: self._limit(token_ids)]
        found = len(self.index.find(identity, keys))
        longest = self._promises.longest(sequence_id, identity, keys, found)
        return (longest - found) * self.block_size

    def num_shared(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> int:
        """Blocks that ``match`` would give now and that others hold."""
        trail = self._named(sequence_id, identity, token_ids)
        self._asked[sequence_id] = token_ids, trail
        found = self.index.find(identity, trail.keys[: self._limit(token_ids)])
        return sum(self._counts[block] > 0 for block in found)

    def match(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> Match:
        """Give a new sequence the blocks of its longest known prefix."""
        if sequence_id in self._trails or sequence_id in self.tables:
            msg = f"sequence {sequence_id} was matched before, or has blocks already"
            raise IntegrityError(msg)
        trail = self._named(sequence_id, identity, token_ids)
        self._asked.pop(sequence_id, None)
        blocks = self.index.find(identity, trail.keys[: self._limit(token_ids)])
        for block in blocks:
            self._cached.pop(block, None)
            self._counts[block] += 1
        if blocks:
            self.tables[sequence_id] = blocks
        trail.published = len(blocks)
        self._trails[sequence_id] = trail
        self._promises.make(sequence_id, trail)
        return Match(num_tokens=len(blocks) * self.block_size, block_ids=tuple(blocks))

    def reserve(self, sequence_id: int, start: int, end: int) -> Reservation | Shortfall:
        """As ``Paged``; a findable block that is written in place is found no more."""
        length = len(self.tables.get(sequence_id, ()))
        answer = super().reserve(sequence_id, start, end)
        if isinstance(answer, Reservation):
            table = self.tables[sequence_id]
            for place in range(length - 1, start // self.block_size - 1, -1):
                self._overwritten(sequence_id, place, table[place])
        return answer

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> Match:
        """Share the parent's blocks; the child's tokens are of its identity."""
        match = super().fork(parent_id, child_id, num_tokens)
        parent = self._trails.get(parent_id)
        if parent is not None:
            full = num_tokens // self.block_size
            published = min(parent.published, full)
            self._trails[child_id] = Trail(parent.identity, parent.keys[:full], published)
        return match

    def trim(self, sequence_id: int, num_tokens: int) -> None:
        """Give blocks back, and forget what was known of their tokens."""
        trail = self._trails.get(sequence_id)
        if trail is not None:
            self._promises.shorten(sequence_id, trail, num_tokens // self.block_size)
        super().trim(sequence_id, num_tokens)

    def publish(self, sequence_id: int, token_ids: Sequence[int], num_tokens: int) -> None:
        """Make newly filled blocks findable; costs nothing between two of them."""
        trail, full = self._trails.get(sequence_id), num_tokens // self.block_size
        if trail is None or full <= trail.published:
            return
        self._name(trail, token_ids, full)
        table = self.tables[sequence_id]
        for place in range(trail.published, full):
            before = self._twins.standing(table[place - 1]) if place else None
            self._enter(trail, place, table[place], before)
        trail.published = full
        self._promises.kept(sequence_id, trail)

    def free(self, sequence_id: int) -> None:
        """Drop a sequence; what it published stays findable, what it promised is not."""
        self._asked.pop(sequence_id, None)
        trail = self._trails.pop(sequence_id, None)
        if trail is not None:
            self._promises.drop(sequence_id, trail)
        super().free(sequence_id)

    def check_integrity(self) -> None:
        """As ``Paged``; what is cached can be found, and the other way round."""
        super().check_integrity()
        self.index.check_integrity()
        findable = set(self.index.blocks())
        unheld = {block for block in findable if not self._counts[block]}
        if unheld != self._cached.keys():
            msg = f"{len(self._cached)} blocks are cached, {len(unheld)} are findable and unheld"
            raise IntegrityError(msg)
        self._twins.check_integrity(findable, self._counts)

    def _limit(self, token_ids: TokenIds) -> int:
        """Blocks that a match may cover: one token is left to compute."""
        return (len(token_ids) - 1) // self.block_size

    def _named(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> Trail:
        """The trail of a sequence that is not matched yet; named once, however often it
        is asked about."""
        known, trail = self._asked.get(sequence_id, ((), Trail(identity)))
        if trail.identity != identity or token_ids[: len(known)] != known:
            trail = Trail(identity)
        self._name(trail, token_ids, len(token_ids) // self.block_size)
        return trail

    def _name(self, trail: Trail, token_ids: Sequence[int], full: int) -> None:
        size, keys = self.block_size, trail.keys
        for place in range(len(keys), full):
            tokens = token_ids[place * size : (place + 1) * size]
            keys.append(self.index.key(trail.identity, keys, tokens))

    def _enter(self, trail: Trail, place: int, block: int, before: int | None) -> None:
        if block in self.index or block in self._twins:
            return  # it was found or forked
        standing = self.index.enter(trail, place, block, before)
        if standing == block:
            return
        self._twins.add(standing, block)
        if not self._counts[standing]:
            del self._cached[standing]
            self._free.append(standing)
            self.index.replace(standing, self._twins.promote(standing))

    def _overwritten(self, sequence_id: int, place: int, block: int) -> None:
        """A block that one table holds gets other content."""
        if block in self._twins:
            self._twins.remove(block)
        elif block in self.index:
            self._unfound(block)
        else:
            return
        self._promises.shorten(sequence_id, self._trails[sequence_id], place)

    def _unfound(self, block: int) -> None:
        """A block is not to be found: a twin takes over, or what follows is lost as well."""
        if self._twins.has(block):
            self.index.replace(block, self._twins.promote(block))
            return
        for lost in self.index.forget(block):
            del self._cached[lost]
            self._free.append(lost)

    def _idle(self) -> set[int]:
        return {*self._free, *self._cached}

    def _taken(self) -> int:
        if self._free:
            return super()._taken()
        block, _ = self._cached.popitem(last=False)
        self._unfound(block)
        self.num_evicted += 1
        self._counts[block] = 1
        return block

    def _dropped(self, block: int) -> None:
        self._counts[block] -= 1
        if self._counts[block]:
            return
        if block in self._twins:
            self._twins.remove(block)
        elif block in self.index:
            if not self._twins.has(block):
                self._cached[block] = None
                return
            self._unfound(block)
        self._free.append(block)
