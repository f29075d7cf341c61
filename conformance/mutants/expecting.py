"""Right allocators that know which prefixes running sequences will publish.

Small and slow, like the caching one that they are made from.
"""

from itertools import takewhile

from enginebay.flow import TokenIds
from enginebay.hookspecs.allocator import Match

from .caching import Caching


class Expecting(Caching):
    """Tells what is being computed and not published yet."""

    num_cached = 0
    num_evicted = 0

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._begun: dict[int, tuple[bytes, TokenIds]] = {}
        """Identity and tokens of every sequence that was matched and not freed."""

    def match(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> Match:
        """Remember who computes what."""
        self._begun[sequence_id] = identity, token_ids
        return super().match(sequence_id, identity, token_ids)

    def free(self, sequence_id: int) -> None:
        """Nothing is to be expected of it any more."""
        self._begun.pop(sequence_id, None)
        super().free(sequence_id)

    def pending(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> int:
        """Full blocks in common with a running sequence, less those that are there."""
        shared = self._shared(identity, token_ids)
        found = takewhile(
            lambda number: (
                self._name(identity, tuple(token_ids[: number * self.block_size]))
                in self._blocks_by_name
            ),
            range(1, shared + 1),
        )
        return (shared - len(list(found))) * self.block_size

    def _shared(self, identity: bytes, token_ids: TokenIds) -> int:
        """Full blocks that the sequence most alike has in common with these tokens."""
        alike = [
            _common(token_ids[:-1], tokens)
            for other, tokens in self._begun.values()
            if other == identity
        ]
        return max(alike, default=0) // self.block_size


def _common(one: TokenIds, other: TokenIds) -> int:
    """How many tokens at the beginning are the same."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class Delaying(Expecting):
    """Expects something of a running sequence until it ends: prefixes are long in coming."""

    def pending(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> int:
        """Full blocks in common with a running sequence, whether they are there or not."""
        return self._shared(identity, token_ids) * self.block_size
