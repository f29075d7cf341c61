"""Promises: what running sequences are about to publish, so that nobody computes it too."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

Key = Hashable
"""Names a block among those that follow the same blocks before it."""


@dataclass
class Trail:
    """What is known of one sequence's tokens, as the names of its full blocks."""

    identity: bytes
    keys: list[Key] = field(default_factory=list)
    """One for each full block, from the first on."""
    published: int = 0
    """Blocks that others can find, or whose like they can."""
    promised: int = 0
    """Blocks that it will have published when its known tokens are computed."""


class Promises:
    """Trails of running sequences with blocks still to publish, by how they begin."""

    def __init__(self) -> None:
        self._by_start: dict[tuple[bytes, Key], dict[int, Trail]] = {}

    def make(self, sequence_id: int, trail: Trail) -> None:
        """A sequence started: it will publish every full block of its known tokens."""
        trail.promised = len(trail.keys)
        if trail.promised > trail.published:
            self._by_start.setdefault(_start(trail), {})[sequence_id] = trail

    def kept(self, sequence_id: int, trail: Trail) -> None:
        """It published some more."""
        if 0 < trail.promised <= trail.published:
            self.drop(sequence_id, trail)

    def shorten(self, sequence_id: int, trail: Trail, num_blocks: int) -> None:
        """Its tokens past so many full blocks were not those that will be computed."""
        if trail.promised > num_blocks:
            if num_blocks <= trail.published:
                self.drop(sequence_id, trail)
            else:
                trail.promised = num_blocks
        trail.published = min(trail.published, num_blocks)
        del trail.keys[num_blocks:]

    def drop(self, sequence_id: int, trail: Trail) -> None:
        """It leaves, or has nothing more to publish."""
        if not trail.promised:
            return
        alike = self._by_start.get(_start(trail), {})
        alike.pop(sequence_id, None)
        if not alike:
            self._by_start.pop(_start(trail), None)
        trail.promised = 0

    def longest(self, sequence_id: int, identity: bytes, keys: Sequence[Key], found: int) -> int:
        """Blocks of a prefix that somebody else will have published; ``found`` or more.

        :param found: blocks that can be found now: only who goes on from there helps
        """
        if found >= len(keys):
            return found
        best = found
        for other, trail in self._by_start.get((identity, keys[0]), {}).items():
            if other == sequence_id or trail.promised <= best:
                continue
            if trail.keys[found] != keys[found] or trail.keys[:found] != keys[:found]:
                continue
            count = found + 1
            while count < min(trail.promised, len(keys)) and trail.keys[count] == keys[count]:
                count += 1
            best = max(best, count)
        return best


def _start(trail: Trail) -> tuple[bytes, Key]:
    return trail.identity, trail.keys[0]
