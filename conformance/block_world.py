"""A small world around an allocator: what every table must hold, and what is in it.

Memory is imagined: each place of each block remembers which prefix was written there.
Every sequence must always read back what it wrote, whatever was forked, trimmed, freed
and reused around it; that one rule contains copy-on-write, sharing and conservation.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from enginebay.flow import BlockOp
from enginebay.hookspecs.allocator import Match, Reservation, Shortfall

from .block_memory import Memory, Table
from .block_traits import IDENTITY, MakeAllocator, traits_of
from .check import require

NOBODY: Final = b"(never matched)"


class BlockWorld:
    """Calls an allocator and holds every answer against what must be true."""

    def __init__(
        self,
        make: MakeAllocator,
        num_blocks: int = 12,
        block_size: int = 4,
        longest: int = 0,
    ) -> None:
        """:param longest: positions of the longest sequence; 0: the whole pool's"""
        self.longest = longest or num_blocks * block_size
        self.allocator = make(num_blocks, block_size, self.longest)
        self.traits = traits_of(make)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.tables: dict[int, Table] = {}
        self._memory = Memory(block_size)
        clause = "allocator/conservation"
        require(self.allocator.num_blocks == num_blocks, clause, "num_blocks is not the pool's")
        self.settled()

    # --- calls -------------------------------------------------------------------

    def begin(self, sequence_id: int, tokens: Sequence[int], identity: bytes = IDENTITY) -> int:
        """Match a prompt and write the rest of it; positions found, -1: no room."""
        match = self.allocator.match(sequence_id, identity, tuple(tokens))
        table = self._adopted(sequence_id, identity, tokens, match)
        table.asked = list(tokens)
        require(
            match.num_tokens < len(tokens),
            "allocator/match-leaves-one",
            f"match covered all {len(tokens)} tokens of a prompt; one must be left to compute",
        )
        if not self.write(sequence_id, tokens[len(table.tokens) :]):
            self.free(sequence_id)
            return -1
        return match.num_tokens

    def found(self, tokens: Sequence[int], identity: bytes = IDENTITY) -> int:
        """Positions that a new sequence finds now; it leaves at once."""
        sequence_id = self.unused
        match = self.allocator.match(sequence_id, identity, tuple(tokens))
        self._adopted(sequence_id, identity, tokens, match)
        self.settled()
        self.free(sequence_id)
        return match.num_tokens

    def write(self, sequence_id: int, tokens: Sequence[int]) -> bool:
        """Reserve room for more tokens and write them. False: a shortfall."""
        table = self.tables.setdefault(sequence_id, Table(NOBODY))
        start, end = len(table.tokens), len(table.tokens) + len(tokens)
        free, lacking = self.allocator.num_free, self.missing(table, start, end)
        answer = self.allocator.reserve(sequence_id, start, end)
        if isinstance(answer, Shortfall):
            self._refused(table, answer, lacking, free)
            return False
        require(
            lacking <= 0 or table.cached_part,
            "allocator/shortfall",
            f"{lacking} blocks were missing and reserve granted positions {start} to {end}",
        )
        self._granted(table, answer, start, end)
        table.tokens += tokens
        table.cached_part = False
        self._memory.write(table, range(start, end))
        self.settled()
        return True

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> None:
        """Share the first positions of one sequence with a new one, as far as the
        allocator shares anything."""
        parent = self.tables[parent_id]
        free = self.allocator.num_free
        match = self.allocator.fork(parent_id, child_id, num_tokens)
        clause = "allocator/fork"
        count = self.traits.shared(num_tokens, self.block_size)
        shared = parent.blocks[: self._blocks(count)]
        told = f"fork gave {match.num_tokens} positions, not {count}"
        require(match.num_tokens == count, clause, told)
        require(list(match.block_ids) == shared, clause, f"{match.block_ids}, not {shared}")
        require(self.allocator.num_free == free, clause, "fork took or gave blocks")
        self._adopted(child_id, parent.identity, parent.tokens, match)
        self.settled()

    def trim(self, sequence_id: int, num_tokens: int) -> None:
        """Give back what lies past a position."""
        table = self.tables[sequence_id]
        if not table.blocks:
            return
        self.allocator.trim(sequence_id, num_tokens)
        del table.tokens[num_tokens:], table.asked[num_tokens:]
        if self.traits.exact:
            del table.blocks[self._blocks(num_tokens) :]
        self.settled("allocator/trim")

    def publish(self, sequence_id: int, num_tokens: int) -> None:
        """Tell that the first tokens are committed."""
        table = self.tables[sequence_id]
        if not table.blocks:
            return
        self.allocator.publish(sequence_id, list(table.tokens), num_tokens)
        table.published = max(table.published, num_tokens)
        self.settled()

    def free(self, sequence_id: int) -> None:
        """Drop a sequence."""
        self.tables.pop(sequence_id, None)
        self.allocator.free(sequence_id)
        self.settled("allocator/free")

    # --- what must be true -------------------------------------------------------

    @property
    def unused(self) -> int:
        """An id that no sequence has."""
        return max(self.tables, default=0) + 1

    @property
    def held(self) -> Counter[int]:
        """Tables that hold each block."""
        return Counter(block for table in self.tables.values() for block in table.blocks)

    def missing(self, table: Table, start: int, end: int) -> int:
        """Blocks that a reservation lacks; 0 or less when there is room."""
        held = self.held
        written = table.blocks[start // self.block_size : self._blocks(end)]
        copies = sum(held[block] > 1 for block in written)
        grown = max(self._blocks(end) - len(table.blocks), 0)
        return copies + grown - self.allocator.num_free

    def settled(self, clause: str = "allocator/conservation") -> None:
        """Blocks are free or held, counts agree, and everyone reads what they wrote."""
        free, held = self.allocator.num_free, len(self.held)
        told = f"{free} blocks are free and {held} held, of {self.num_blocks}"
        require(free + held == self.num_blocks, clause, told)
        self.allocator.check_integrity()
        for sequence_id, table in self.tables.items():
            for position in range(len(table.tokens)):
                require(
                    self._memory.holds(table, position),
                    "allocator/content",
                    f"position {position} of sequence {sequence_id} was overwritten",
                )

    def _adopted(
        self, sequence_id: int, identity: bytes, tokens: Sequence[int], match: Match
    ) -> Table:
        known = list(tokens[: match.num_tokens])
        table = Table(identity, known, list(match.block_ids), match.num_tokens)
        table.cached_part = match.num_tokens % self.block_size > 0
        self.tables[sequence_id] = table
        told = f"{len(table.blocks)} blocks for {match.num_tokens} positions"
        right = len(table.blocks) == self._blocks(match.num_tokens)
        require(right, "allocator/match-content", told)
        for position in range(match.num_tokens):
            require(
                self._memory.holds(table, position),
                "allocator/match-content",
                f"position {position} holds another prefix, or another identity's",
            )
        return table

    def _refused(self, table: Table, answer: Shortfall, lacking: int, free: int) -> None:
        clause = "allocator/shortfall"
        if not table.cached_part:
            told = f"{answer.missing} blocks said to be missing, {lacking} are"
            require(answer.missing == lacking, clause, told)
        require(answer.missing > 0, clause, "a shortfall of nothing")
        left = self.allocator.num_free
        require(left == free, clause, f"a failed reserve changed num_free from {free} to {left}")
        self.settled(clause)

    def _granted(self, table: Table, answer: Reservation, start: int, end: int) -> None:
        old = list(table.blocks)
        clause = "allocator/table"
        told = f"entries from {answer.first} on of a table of {len(old)}"
        require(0 <= answer.first <= len(old), clause, told)
        new = [*old[: answer.first], *answer.block_ids]
        length = max(len(old), self._blocks(end))
        told = f"first {answer.first} and {len(answer.block_ids)} blocks give no table of {length}"
        right = len(new) == length if self.traits.exact else len(new) >= length
        require(right, clause, told)
        self._check_changes(old, new, answer.ops, start)
        self._memory.copy(answer.ops)
        table.blocks[:] = new

    def _check_changes(
        self, old: list[int], new: list[int], ops: tuple[BlockOp, ...], start: int
    ) -> None:
        held, clause = self.held, "allocator/copy-on-write"
        copied = {op.source: op.target for op in ops if op.kind == "copy"}
        for place, (before, now) in enumerate(zip(old, new, strict=False)):
            if place < start // self.block_size:
                told = f"entry {place} changed although nothing before {start} is written"
                require(before == now, "allocator/table", told)
            elif held[before] > 1:
                told = f"shared block {before} at entry {place} is written without a copy"
                require(now != before and copied.get(before) == now, clause, told)
        fresh = [block for block in new if block not in old]
        in_use = [block for block in fresh if held[block]]
        require(not in_use, "allocator/conservation", f"blocks {in_use} were handed out twice")
        require(len(set(fresh)) == len(fresh), "allocator/conservation", f"twice in {new}")
        stray = [op for op in ops if op.kind == "copy" and op.target not in fresh]
        require(not stray, clause, f"a copy into a block that was not free: {stray}")

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
