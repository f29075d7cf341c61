"""Paged KV blocks with reference counts and copy-on-write; no prefix reuse.

After Kwon et al., PagedAttention (arXiv 2309.06180): a sequence's cache is a table of
fixed-size blocks, so only its last block is partly idle.
"""

from collections import deque
from collections.abc import Sequence

import msgspec

from enginebay import hookimpl
from enginebay.errors import IntegrityError
from enginebay.flow import BlockOp, TokenIds
from enginebay.hookspecs.allocator import (
    Allocator,
    AllocatorContext,
    Match,
    Reservation,
    Shortfall,
)

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to choose: the block size is the engine's."""


class Paged:
    """Block tables over one pool. A block is free or held by one table or more."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.tables: dict[int, list[int]] = {}
        self._free = deque(range(num_blocks))
        self._counts = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def match(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> Match:
        """Nothing is ever cached here."""
        return Match()

    def reserve(self, sequence_id: int, start: int, end: int) -> Reservation | Shortfall:
        """Grow a table to ``end`` positions; copy shared blocks from ``start`` on."""
        table = self.tables.get(sequence_id, [])
        first = min(start // self.block_size, len(table))
        covered = -(-end // self.block_size) <= len(table)
        if covered and first == len(table) - 1 and self._counts[table[first]] == 1:
            return Reservation(first=len(table))  # decoding inside its own last block
        shared = [place for place in range(first, len(table)) if self._counts[table[place]] > 1]
        grown = -(-end // self.block_size) - len(table)
        missing = len(shared) + max(grown, 0) - self.num_free
        if missing > 0:
            return Shortfall(missing=missing)
        ops = tuple(self._copied(table, place) for place in shared)
        changed = min(shared, default=len(table))
        table.extend(self._taken() for _ in range(grown))
        self.tables[sequence_id] = table
        return Reservation(first=changed, block_ids=tuple(table[changed:]), ops=ops)

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> Match:
        """Share the parent's blocks up to ``num_tokens`` positions."""
        blocks = self.tables[parent_id][: -(-num_tokens // self.block_size)]
        if child_id in self.tables:
            msg = f"sequence {child_id} has blocks already and can't be forked into"
            raise IntegrityError(msg)
        for block in blocks:
            self._counts[block] += 1
        self.tables[child_id] = list(blocks)
        return Match(num_tokens=num_tokens, block_ids=tuple(blocks))

    def trim(self, sequence_id: int, num_tokens: int) -> None:
        """Give back the blocks past ``num_tokens`` positions."""
        table = self.tables[sequence_id]
        kept = -(-num_tokens // self.block_size)
        for block in reversed(table[kept:]):
            self._dropped(block)
        del table[kept:]

    def publish(self, sequence_id: int, token_ids: Sequence[int], num_tokens: int) -> None:
        """Committed tokens are of no use without prefix reuse."""

    def free(self, sequence_id: int) -> None:
        """Drop a sequence's table."""
        for block in reversed(self.tables.pop(sequence_id, ())):
            self._dropped(block)

    def check_integrity(self) -> None:
        """Every block is free or counted once for each table that holds it."""
        held = [0] * self.num_blocks
        for table in self.tables.values():
            for block in table:
                held[block] += 1
        free = set(self._free)
        idle = self._idle()
        if held != self._counts:
            wrong = [
                block for block in range(self.num_blocks) if held[block] != self._counts[block]
            ]
            msg = f"blocks {wrong[:8]} are counted differently from the tables that hold them"
            raise IntegrityError(msg)
        if len(free) != len(self._free):
            msg = "a block stands in the free list twice"
            raise IntegrityError(msg)
        unowned = [b for b in range(self.num_blocks) if (held[b] == 0) != (b in idle)]
        if unowned:
            msg = f"blocks {unowned[:8]} are lost, or free and held at once"
            raise IntegrityError(msg)

    def _idle(self) -> set[int]:
        """Blocks that nobody holds."""
        return set(self._free)

    def _taken(self) -> int:
        block = self._free.popleft()
        self._counts[block] = 1
        return block

    def _copied(self, table: list[int], place: int) -> BlockOp:
        source, target = table[place], self._taken()
        self._counts[source] -= 1
        table[place] = target
        return BlockOp(kind="copy", source=source, target=target)

    def _dropped(self, block: int) -> None:
        self._counts[block] -= 1
        if self._counts[block] == 0:
            self._free.append(block)


@hookimpl
def enginebay_allocator(options: Options, context: AllocatorContext) -> Allocator:
    """Build the pool."""
    return Paged(context.num_blocks, context.block_size)
