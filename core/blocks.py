"""KV memory of sequences: the allocator, the swap space, and what moving bytes costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .holdings import Holdings
from .hookspecs.allocator import Match, PrefixCaching, PrefixSharing, Reservation, Shortfall
from .hookspecs.scheduler import PreemptionCost
from .patience import Patience
from .sequence import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from .flow import BlockOp, TokenIds
    from .hookspecs.allocator import Allocator
    from .hookspecs.scheduler import How
    from .sequence import Sequence
    from .swap import SwapSpace


class Blocks:
    """What sequences hold, lose and find again. Owned by the step thread."""

    def __init__(
        self,
        allocator: Allocator,
        swap: SwapSpace,
        *,
        block_size: int,
        max_step_tokens: int,
        swap_seconds: float = 0.0,
        pace: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """:param swap_seconds: to save one block and load it again
        :param pace: seconds to compute one position, 0 when unknown
        """
        self.allocator = allocator
        self.swap = swap
        self._caching = allocator if isinstance(allocator, PrefixCaching) else None
        self._sharing = allocator if isinstance(allocator, PrefixSharing) else None
        self._holdings = Holdings(allocator, allocator.num_blocks, block_size)
        self._shared: dict[int, int] = {}
        """Blocks that waiting sequences would have shared when last asked about."""
        self._patience = Patience(block_size, max_step_tokens)
        self._block_size = block_size
        self._swap_seconds = swap_seconds
        self._pace = pace

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and that could still be found."""
        return self._caching.num_cached if self._caching else 0

    @property
    def num_evicted(self) -> int:
        """Cached blocks given to somebody else, since the start."""
        return self._caching.num_evicted if self._caching else 0

    def awaits_prefix(self, sequence: Sequence) -> bool:
        """Whether running sequences are computing a prefix that this one begins with, and
        fast enough. To be asked once a step."""
        if self._caching is None or not _may_reuse(sequence):
            return False
        if self.swap.num_saved(sequence.id) or _forkable(sequence):
            return False
        if self._patience.resting(sequence.id):
            self._patience.rest(sequence.id)
            return True
        identity, tokens = sequence.group.identity, _tokens(sequence)
        pending = self._caching.pending(sequence.id, identity, tokens)
        return pending > 0 and self._patience.lasts(sequence.id, identity, pending)

    def needed(self, sequence: Sequence) -> int:
        """Free blocks that a waiting sequence would take for its known tokens."""
        resting = self._patience.resting(sequence.id)
        if self._sharing is not None and _may_reuse(sequence) and not resting:
            identity, tokens = sequence.group.identity, _tokens(sequence)
            self._shared[sequence.id] = self._sharing.num_shared(sequence.id, identity, tokens)
        shared = self._shared.get(sequence.id, 0)
        return -(-sequence.num_tokens // self._block_size) - shared

    def find(self, sequence: Sequence) -> Match:
        """Positions of a sequence about to start that need not be computed, with the
        blocks that hold them: forked from its request's first choice, or cached."""
        if not _may_reuse(sequence):
            return Match()
        # What was saved may end within the last shared block, and would be loaded over it.
        if _forkable(sequence) and not self.swap.num_saved(sequence.id):
            first = sequence.group.sequences[0]
            match = self.allocator.fork(first.id, sequence.id, sequence.num_prompt - 1)
            return self._holdings.check_match(match, sequence)
        match = self.allocator.match(sequence.id, sequence.group.identity, _tokens(sequence))
        return self._holdings.check_match(match, sequence)

    def grow(self, sequence: Sequence, start: int, end: int) -> Reservation | Shortfall:
        """Make positions ``start .. end - 1`` writable."""
        answer = self.allocator.reserve(sequence.id, start, end)
        if isinstance(answer, Reservation):
            self._holdings.check_reservation(answer, sequence, end)
            if answer.block_ids or answer.first < len(sequence.table):
                sequence.table[answer.first :] = answer.block_ids
        return answer

    def restore(self, sequence: Sequence, start: int) -> list[BlockOp]:
        """Bring back what was swapped out, from position ``start`` on."""
        if not self.swap.num_saved(sequence.id):
            return []
        return self.swap.load(sequence.id, sequence.table, start)

    def cost(self, sequence: Sequence) -> PreemptionCost:
        """What it would cost to bring a running sequence back to where it is."""
        count = sequence.num_computed
        roomy = self.swap.has_room(count)
        seconds = -(-count // self._block_size) * self._swap_seconds
        return PreemptionCost(
            recompute_seconds=count * self._pace(), swap_seconds=seconds if roomy else None
        )

    def vacate(self, sequence: Sequence, how: How) -> tuple[How, list[BlockOp]]:
        """Take a preempted sequence's blocks. :return: how it was done, and what to move"""
        if how == "cheapest":
            how = self.cost(sequence).cheapest
        ops: list[BlockOp] = []
        if how == "swap" and self.swap.has_room(sequence.num_computed):
            ops = self.swap.save(sequence.id, sequence.table, sequence.num_computed)
        self.allocator.free(sequence.id)
        sequence.table = []
        return ("swap" if ops else "recompute"), ops

    def release(self, sequence_id: int) -> None:
        """A sequence left."""
        self.allocator.free(sequence_id)
        self.swap.drop(sequence_id)
        self._patience.drop(sequence_id)
        self._shared.pop(sequence_id, None)


def _tokens(sequence: Sequence) -> TokenIds:
    """What it knows; the prompt is not copied: those that wait are asked about every step."""
    return tuple(sequence.token_ids if sequence.num_generated else sequence.group.prompt_ids)


def _may_reuse(sequence: Sequence) -> bool:
    """A prompt whose tokens are to be scored is computed whole."""
    return sequence.sampling.prompt_logprobs is None


def _forkable(sequence: Sequence) -> bool:
    """Whether its request's first choice holds the whole prompt's positions but one."""
    first, shared = sequence.group.sequences[0], sequence.num_prompt - 1
    fresh = first is not sequence and sequence.num_generated == 0 and shared > 0
    return fresh and first.state is State.RUNNING and first.num_computed >= shared
