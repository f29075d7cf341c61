"""Paged KV blocks with prefix reuse: full blocks are found by a chain of hashes.

The name of a block is a SHA-256 over the name of the block before it and its own tokens;
the first one hangs on the request's cache identity, which holds the tenant's secret salt.
So equal names mean equal prefixes of equal meaning, nobody can make two prefixes collide,
and nobody can guess another tenant's names. The blocks unheld for longest are evicted
first, children before their parents.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from enginebay import hookimpl
from enginebay.errors import IntegrityError
from enginebay.hookspecs.allocator import Allocator, AllocatorContext

from .promises import Key, Trail
from .reuse import Reusing

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to choose: the block size is the engine's."""


class HashIndex:
    """Findable blocks by the hash of all tokens up to their end."""

    def __init__(self, block_size: int) -> None:
        self._pack = struct.Struct(f"<{block_size}q").pack
        self._blocks: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}

    def key(self, identity: bytes, keys: Sequence[Key], token_ids: Sequence[int]) -> Key:
        """SHA-256 of the name before (the identity's hash, at first) and the tokens.

        Both parts have a fixed length, so no other split of the bytes gives the same.
        """
        before: Any = keys[-1] if keys else hashlib.sha256(identity).digest()
        return hashlib.sha256(before + self._pack(*token_ids)).digest()

    def find(self, identity: bytes, keys: Sequence[Key]) -> list[int]:
        """Blocks of the longest known prefix."""
        blocks: list[int] = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def enter(self, trail: Trail, place: int, block: int, before: int | None) -> int:
        """Make a block findable, unless one with its content is."""
        standing = self._blocks.setdefault(trail.keys[place], block)
        if standing == block:
            self._keys[block] = trail.keys[place]
        return standing

    def replace(self, block: int, other: int) -> None:
        """Let another block with the same content stand for one."""
        key = self._keys.pop(block)
        self._keys[other] = key
        self._blocks[key] = other

    def forget(self, block: int) -> Iterable[int]:
        """What follows it keeps its name, and is found again with whatever replaces it."""
        del self._blocks[self._keys.pop(block)]
        return ()

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def blocks(self) -> Iterable[int]:
        """Every findable block."""
        return self._keys

    def check_integrity(self) -> None:
        """Names and blocks are one to one."""
        if {block: key for key, block in self._blocks.items()} != self._keys:
            msg = f"{len(self._blocks)} names and {len(self._keys)} named blocks don't agree"
            raise IntegrityError(msg)


@hookimpl
def enginebay_allocator(options: Options, context: AllocatorContext) -> Allocator:
    """Build the pool."""
    return Reusing(context.num_blocks, context.block_size, HashIndex(context.block_size))
