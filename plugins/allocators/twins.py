"""Twins: blocks with the content of a findable one, computed at the same time by others."""

from collections.abc import Container, Sequence

from enginebay.errors import IntegrityError


class Twins:
    """For each findable block, the held blocks that could stand in for it."""

    def __init__(self) -> None:
        self._standing: dict[int, int] = {}
        """Twin -> the findable block with its content."""
        self._alike: dict[int, list[int]] = {}
        """The reverse."""

    def __contains__(self, block: int) -> bool:
        return block in self._standing

    def standing(self, block: int) -> int:
        """The findable block with the content of this one."""
        return self._standing.get(block, block)

    def has(self, block: int) -> bool:
        """Whether a findable block has a twin."""
        return block in self._alike

    def add(self, block: int, twin: int) -> None:
        """A block turned out to have the content of a findable one."""
        self._standing[twin] = block
        self._alike.setdefault(block, []).append(twin)

    def remove(self, twin: int) -> None:
        """A twin has other content now, or none."""
        block = self._standing.pop(twin)
        self._alike[block].remove(twin)
        if not self._alike[block]:
            del self._alike[block]

    def promote(self, block: int) -> int:
        """Let a twin stand for a block from now on. :return: that twin"""
        chosen, *rest = self._alike.pop(block)
        del self._standing[chosen]
        for twin in rest:
            self.add(chosen, twin)
        return chosen

    def check_integrity(self, findable: Container[int], counts: Sequence[int]) -> None:
        """Twins and what they stand for are held; only the latter can be found."""
        for twin, block in self._standing.items():
            held = counts[twin] and counts[block]
            if not held or block not in findable or twin in findable:
                msg = f"block {twin} is kept as a twin of {block} in error"
                raise IntegrityError(msg)
