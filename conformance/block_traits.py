"""What an allocator chooses to do where its contract leaves the choice, by trying it.

A choice seen once binds: who takes exactly the blocks that it needs must always do so and
give them back when trimmed; who shares partly filled blocks must always share them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from enginebay.hookspecs.allocator import Allocator, Reservation

from .check import require

MakeAllocator = Callable[[int, int, int], Allocator]
"""``make(num_blocks, block_size, max_model_len)``: a new allocator over an empty pool."""
IDENTITY: Final = b"model"
_TRIED: Final = 6
"""Tokens tried with: a block of 4 and half of another."""


@dataclass(frozen=True)
class Traits:
    """An allocator's choices."""

    exact: bool
    """A table is as long as its tokens need, not longer."""
    sharing: Literal["all", "full", "none"]
    """What a fork shares: all positions, those of full blocks, or none."""

    def shared(self, num_tokens: int, block_size: int) -> int:
        """Positions that a fork of so many shares."""
        full = num_tokens // block_size * block_size
        return {"all": num_tokens, "full": full, "none": 0}[self.sharing]


def traits_of(make: MakeAllocator) -> Traits:
    """Try one sequence and one fork in an empty pool of 12 blocks."""
    allocator = make(12, 4, 24)
    tokens = tuple(range(_TRIED))
    allocator.match(1, IDENTITY, tokens)
    answer = allocator.reserve(1, 0, _TRIED)
    if not isinstance(answer, Reservation):
        require(False, "allocator/shortfall", "an empty pool of 12 blocks has no room for 2")
        raise TypeError
    shared = allocator.fork(1, 2, _TRIED).num_tokens
    ways: dict[int, Literal["all", "full", "none"]] = {_TRIED: "all", 4: "full", 0: "none"}
    told = f"a fork of {_TRIED} positions gave {shared}: not all, not the full blocks, not none"
    require(shared in ways, "allocator/fork", told)
    return Traits(exact=len(answer.block_ids) == 2, sharing=ways[shared])


def any_length(make: Callable[[int, int], Allocator]) -> MakeAllocator:
    """A factory from one that takes a pool's size alone: the longest sequence is the same
    to it."""
    return lambda num_blocks, block_size, max_model_len: make(num_blocks, block_size)
