"""A right allocator with prefix reuse, small and slow: what cache mutants are made from."""

from collections.abc import Sequence

from enginebay.flow import TokenIds
from enginebay.hookspecs.allocator import Match, Reservation, Shortfall
from enginebay.plugins.allocators.paged import Paged

Name = tuple[bytes, TokenIds]
"""Identity and every token up to a block's end: no hash, so no collision."""


class Caching(Paged):
    """Full blocks stay findable under their whole prefix until they are handed out.

    Of blocks with one name one is found; the others have it while they are held. The free
    list holds cached blocks too, in the order in which they were given back.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.num_evicted = 0
        self._blocks_by_name: dict[Name, int] = {}
        self._names: dict[int, Name] = {}
        self._identities: dict[int, bytes] = {}
        self._promised: dict[int, TokenIds] = {}
        """The tokens that each running sequence was matched with."""

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and that have a name."""
        return sum(block in self._names for block in self._free)

    def pending(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> int:
        """Full blocks in common with a running sequence, past those found now."""
        found = self._find(identity, token_ids)
        longest = len(found)
        for other, tokens in self._promised.items():
            if self._identities[other] == identity and other != sequence_id:
                count = longest
                while count < self._limit(token_ids) and self._alike(token_ids, tokens, count + 1):
                    count += 1
                longest = count
        return (longest - len(found)) * self.block_size

    def match(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> Match:
        """The blocks of the longest known prefix."""
        self._identities[sequence_id] = identity
        self._promised[sequence_id] = token_ids
        blocks = self._find(identity, token_ids)
        for block in blocks:
            if self._counts[block] == 0:
                self._free.remove(block)
            self._counts[block] += 1
        if blocks:
            self.tables[sequence_id] = list(blocks)
        return Match(num_tokens=len(blocks) * self.block_size, block_ids=tuple(blocks))

    def reserve(self, sequence_id: int, start: int, end: int) -> Reservation | Shortfall:
        """As paged; a named block that is written in place loses its name."""
        length = len(self.tables.get(sequence_id, ()))
        answer = super().reserve(sequence_id, start, end)
        if isinstance(answer, Reservation):
            for block in self.tables[sequence_id][start // self.block_size : length]:
                self._forget(block)
        return answer

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> Match:
        """The child's tokens are of the parent's identity."""
        if parent_id in self._identities:
            self._identities[child_id] = self._identities[parent_id]
        return super().fork(parent_id, child_id, num_tokens)

    def trim(self, sequence_id: int, num_tokens: int) -> None:
        """What was trimmed is not promised any more."""
        if sequence_id in self._promised:
            self._promised[sequence_id] = self._promised[sequence_id][:num_tokens]
        super().trim(sequence_id, num_tokens)

    def publish(self, sequence_id: int, token_ids: Sequence[int], num_tokens: int) -> None:
        """Name the full blocks of committed tokens."""
        identity = self._identities.get(sequence_id)
        if identity is None:
            return  # it was never matched, so nobody knows what its tokens mean
        for number, block in enumerate(self.tables[sequence_id], start=1):
            if number * self.block_size > num_tokens:
                break
            name = self._name(identity, tuple(token_ids[: number * self.block_size]))
            standing = self._blocks_by_name.get(name, block)
            if standing != block and not self._counts[standing]:
                self._forget(standing)  # it would be kept twice
            self._names[block] = name
            self._blocks_by_name.setdefault(name, block)
        if num_tokens // self.block_size >= self._num_promised(sequence_id):
            self._promised.pop(sequence_id, None)

    def free(self, sequence_id: int) -> None:
        """Drop a sequence; its named blocks stay findable."""
        self._identities.pop(sequence_id, None)
        self._promised.pop(sequence_id, None)
        super().free(sequence_id)

    def _num_promised(self, sequence_id: int) -> int:
        return len(self._promised.get(sequence_id, ())) // self.block_size

    def _find(self, identity: bytes, token_ids: TokenIds) -> list[int]:
        blocks: list[int] = []
        for number in range(1, self._limit(token_ids) + 1):
            name = self._name(identity, tuple(token_ids[: number * self.block_size]))
            if name not in self._blocks_by_name:
                break
            blocks.append(self._blocks_by_name[name])
        return blocks

    def _alike(self, tokens: TokenIds, others: TokenIds, num_blocks: int) -> bool:
        """Whether two prompts begin with the same full blocks."""
        end = num_blocks * self.block_size
        return len(others) >= end and tokens[:end] == others[:end]

    def _limit(self, token_ids: TokenIds) -> int:
        """Blocks that a match may cover: one token is left to compute."""
        return (len(token_ids) - 1) // self.block_size

    def _name(self, identity: bytes, prefix: TokenIds) -> Name:
        return identity, prefix

    def _forget(self, block: int) -> bool:
        """:return: whether it had a name"""
        name = self._names.pop(block, None)
        if name is not None and self._blocks_by_name[name] == block:
            del self._blocks_by_name[name]
            for twin in self._twins(name):
                self._blocks_by_name[name] = twin
        return name is not None

    def _twins(self, name: Name) -> list[int]:
        """Held blocks of one name: who computed it at the same time keeps its own."""
        return [
            block for block, other in self._names.items() if other == name and self._counts[block]
        ]

    def _dropped(self, block: int) -> None:
        super()._dropped(block)
        name = self._names.get(block)
        if not self._counts[block] and name is not None and self._twins(name):
            self._forget(block)

    def _next(self) -> int:
        """Which of the free blocks to hand out: a nameless one, or the longest unheld."""
        return next((block for block in self._free if block not in self._names), self._free[0])

    def _taken(self) -> int:
        block = self._next()
        self._free.remove(block)
        self._counts[block] = 1
        self.num_evicted += self._forget(block)
        return block
