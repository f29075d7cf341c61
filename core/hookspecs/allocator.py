"""Allocator: which KV blocks belong to whom. Block ids and counts only, no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..flow import BlockOp, Frozen, TokenIds
from .markers import hookspec


class Match(Frozen, frozen=True, kw_only=True):
    """Positions of a prompt whose keys and values are already cached."""

    num_tokens: int = 0
    block_ids: TokenIds = ()
    """The blocks that hold them, now the beginning of the sequence's table."""


class Reservation(Frozen, frozen=True, kw_only=True):
    """A sequence's block table, from entry ``first`` on, is now ``block_ids``.

    The table covers at least the positions asked for; it may be longer.
    """

    first: int = 0
    block_ids: TokenIds = ()
    ops: tuple[BlockOp, ...] = ()
    """Bytes to move before the step writes (copy-on-write)."""


class Shortfall(Frozen, frozen=True, kw_only=True):
    """Nothing was reserved: so many blocks are missing."""

    missing: int


class Allocator(Protocol):
    """Hands out KV blocks with reference counts. Called from the step thread alone.

    Conservation: every block is free, cached, or held; ``num_free`` counts those that
    a reservation could get right now (evictable cached ones included).
    """

    @property
    def num_blocks(self) -> int: ...
    @property
    def num_free(self) -> int: ...
    def match(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> Match:
        """Give a new sequence the cached blocks of its longest known prefix.

        :param identity: root of the hash chain: model, quantization, adapter,
            tokenizer, template, positional policy, tenant salt
        Never covers the whole prompt: at least one token is left to compute.
        """

    def reserve(self, sequence_id: int, start: int, end: int) -> Reservation | Shortfall:
        """Make positions ``start .. end - 1`` of a sequence writable. All or nothing.

        An unknown id starts a new table. A shared block that would be written is
        replaced by a copy, which ``Reservation.ops`` asks for.
        """

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> Match:
        """Share the parent's first ``num_tokens`` positions with a new sequence.

        Full blocks are shared, and so is a partly filled last one, until a
        ``reserve`` of either sequence would write it. An allocator that can't share
        answers with fewer positions, or none.
        """

    def trim(self, sequence_id: int, num_tokens: int) -> None:
        """Positions from ``num_tokens`` on are worthless (rejected drafts): blocks past
        them may be given back."""

    def publish(self, sequence_id: int, token_ids: Sequence[int], num_tokens: int) -> None:
        """Tell that the first ``num_tokens`` of ``token_ids`` are committed: only their
        blocks may be reused by others. The list is read during the call alone.

        A sequence that was neither matched nor forked from one that was has no
        identity: nothing of it may be found by others.
        """

    def free(self, sequence_id: int) -> None:
        """Drop a sequence; unknown ids are ignored, so a second call is harmless."""

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` on a leak, double use or wrong count."""


@runtime_checkable
class PrefixCaching(Protocol):
    """Optional: an allocator that keeps published blocks for others to find."""

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and that could still be found."""

    @property
    def num_evicted(self) -> int:
        """Cached blocks given to somebody else, since the start."""

    def pending(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> int:
        """Positions of a new sequence's prefix, past those that ``match`` would find now,
        that running sequences hold blocks for and are expected to publish; 0: none.

        Asked before ``match``; a sequence with some waits instead of computing them too.
        """


@runtime_checkable
class PrefixSharing(Protocol):
    """Optional: an allocator whose running sequences can share cached blocks."""

    def num_shared(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> int:
        """Blocks that ``match`` would give a new sequence now and that others hold: they
        take nothing from ``num_free``."""


@dataclass(frozen=True)
class AllocatorContext:
    """What an allocator is built with."""

    num_blocks: int
    block_size: int
    """Tokens a block."""
    max_model_len: int = 0
    """Positions of the longest sequence; 0: as many as the pool holds."""


@hookspec(firstresult=True)
def enginebay_allocator(options: Any, context: AllocatorContext) -> Allocator:  # type: ignore[empty-body]
    """Build the allocator. Called once, at assembly.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: size of the pool
    """
