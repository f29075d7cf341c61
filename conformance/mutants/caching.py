"""A right allocator with prefix reuse, small and slow: what cache mutants are made from."""

from collections.abc import Sequence

from enginebay.flow import TokenIds
from enginebay.hookspecs.allocator import Match
from enginebay.plugins.allocators.paged import Paged

Name = tuple[bytes, TokenIds]
"""Identity and every token up to a block's end: no hash, so no collision."""


class Caching(Paged):
    """Full blocks stay findable under their whole prefix until they are handed out."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._blocks_by_name: dict[Name, int] = {}
        self._names: dict[int, Name] = {}
        self._identities: dict[int, bytes] = {}

    def match(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> Match:
        """The blocks of the longest known prefix."""
        self._identities[sequence_id] = identity
        blocks: list[int] = []
        for number in range(1, self._limit(token_ids) + 1):
            name = self._name(identity, tuple(token_ids[: number * self.block_size]))
            if name not in self._blocks_by_name:
                break
            blocks.append(self._blocks_by_name[name])
        for block in blocks:
            if self._counts[block] == 0:
                self._free.remove(block)
            self._counts[block] += 1
        if blocks:
            self.tables[sequence_id] = list(blocks)
        return Match(num_tokens=len(blocks) * self.block_size, block_ids=tuple(blocks))

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> Match:
        """The child's tokens are of the parent's identity."""
        if parent_id in self._identities:
            self._identities[child_id] = self._identities[parent_id]
        return super().fork(parent_id, child_id, num_tokens)

    def publish(self, sequence_id: int, token_ids: Sequence[int], num_tokens: int) -> None:
        """Name the full blocks of committed tokens."""
        identity = self._identities.get(sequence_id)
        if identity is None:
            return  # it was never matched, so nobody knows what its tokens mean
        for number, block in enumerate(self.tables[sequence_id], start=1):
            if number * self.block_size > num_tokens:
                break
            name = self._name(identity, tuple(token_ids[: number * self.block_size]))
            if self._blocks_by_name.setdefault(name, block) == block:
                self._names[block] = name

    def free(self, sequence_id: int) -> None:
        """Drop a sequence; its named blocks stay findable."""
        self._identities.pop(sequence_id, None)
        super().free(sequence_id)

    def _limit(self, token_ids: TokenIds) -> int:
        """Blocks that a match may cover: one token is left to compute."""
        return (len(token_ids) - 1) // self.block_size

    def _name(self, identity: bytes, prefix: TokenIds) -> Name:
        return identity, prefix

    def _taken(self) -> int:
        block = super()._taken()
        name = self._names.pop(block, None)
        if name is not None:
            del self._blocks_by_name[name]
        return block
