"""Maximum-length regions: one run of consecutive blocks for each sequence, used or not.

How caches were laid out before paging, and what paging is measured against (Kwon et al.,
arXiv 2309.06180, section 3.1): a sequence that ends early has held room for the longest
one all its life, and nothing can be shared.
"""

from collections import deque
from collections.abc import Sequence

import msgspec

from enginebay import hookimpl
from enginebay.errors import IntegrityError
from enginebay.flow import TokenIds
from enginebay.hookspecs.allocator import (
    Allocator,
    AllocatorContext,
    Match,
    Reservation,
    Shortfall,
)

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to choose: a region's size follows from the longest sequence."""


class Contiguous:
    """A pool cut into as many regions as hold the longest sequence each.

    What the division leaves over makes some regions a block longer, so that every block
    belongs to one. A pool smaller than one sequence is a single region.
    """

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int = 0) -> None:
        """:param max_model_len: positions of the longest sequence; 0: the whole pool's"""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.regions = _regions(num_blocks, -(-max_model_len // block_size))
        """The blocks of each region."""
        self.holders: dict[int, int] = {}
        """Sequence id -> number of its region."""
        self._free = deque(range(len(self.regions)))

    @property
    def num_free(self) -> int:
        """Blocks of the regions that nobody holds."""
        return sum(len(self.regions[number]) for number in self._free)

    def match(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> Match:
        """Nothing is ever cached here."""
        return Match()

    def reserve(self, sequence_id: int, start: int, end: int) -> Reservation | Shortfall:
        """A new sequence gets a whole region; a known one has all it will ever get."""
        needed = -(-end // self.block_size)
        held = self.holders.get(sequence_id)
        if held is not None:
            size = len(self.regions[held])
            return Shortfall(missing=needed - size) if needed > size else Reservation(first=size)
        if not self._free:
            return Shortfall(missing=needed)
        region = self.regions[self._free[0]]
        if needed > len(region):
            return Shortfall(missing=needed - len(region))
        self.holders[sequence_id] = self._free.popleft()
        return Reservation(first=0, block_ids=tuple(region))

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> Match:
        """Nothing is shared: the child computes everything itself."""
        return Match()

    def trim(self, sequence_id: int, num_tokens: int) -> None:
        """A region is kept whole until its sequence ends."""

    def publish(self, sequence_id: int, token_ids: Sequence[int], num_tokens: int) -> None:
        """Committed tokens are of no use without prefix reuse."""

    def free(self, sequence_id: int) -> None:
        """Give a sequence's region back."""
        number = self.holders.pop(sequence_id, None)
        if number is not None:
            self._free.append(number)

    def check_integrity(self) -> None:
        """Every region is free or held by one sequence."""
        accounted = sorted([*self._free, *self.holders.values()])
        if accounted != list(range(len(self.regions))):
            msg = (
                f"{len(self._free)} regions are free and {len(self.holders)} held, "
                f"of {len(self.regions)}: one is lost or given twice"
            )
            raise IntegrityError(msg)


def _regions(num_blocks: int, longest: int) -> list[range]:
    """Cut a pool into equal runs of ``longest`` blocks or more."""
    count = max(num_blocks // longest, 1) if longest else 1
    size, longer = divmod(num_blocks, count)
    ends = [number * size + min(number, longer) for number in range(count + 1)]
    return [range(ends[number], ends[number + 1]) for number in range(count)]


@hookimpl
def enginebay_allocator(options: Options, context: AllocatorContext) -> Allocator:
    """Build the pool."""
    return Contiguous(context.num_blocks, context.block_size, context.max_model_len)
