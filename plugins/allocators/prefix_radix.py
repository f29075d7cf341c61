"""Paged KV blocks with prefix reuse: prefixes are paths of a radix tree.

After RadixAttention (Zheng et al., SGLang, arXiv 2312.07104): runs of tokens are edges,
compared token by token, so that no hash can collide. Here a run is made of whole blocks
and is split where two prefixes part. Each cache identity has a tree of its own. Leaves
are evicted from their ends, those unheld for longest first.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from enginebay import hookimpl
from enginebay.errors import IntegrityError
from enginebay.hookspecs.allocator import Allocator, AllocatorContext

from .promises import Key, Trail
from .reuse import Reusing

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to choose: the block size is the engine's."""


@dataclass(eq=False)
class Run:
    """Blocks that follow one another, with the tokens of each; a root has none."""

    identity: bytes
    parent: "Run | None" = None
    first: int = 0
    """Blocks before it."""
    keys: list[Key] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    children: dict[Key, "Run"] = field(default_factory=dict)
    """By the tokens of their first block."""


class RadixIndex:
    """Findable blocks as paths of tokens."""

    def __init__(self) -> None:
        self._roots: dict[bytes, Run] = {}
        self._runs: dict[int, Run] = {}

    def key(self, identity: bytes, keys: Sequence[Key], token_ids: Sequence[int]) -> Key:
        """The block's own tokens: what stands before it is its place in the tree."""
        return tuple(token_ids)

    def find(self, identity: bytes, keys: Sequence[Key]) -> list[int]:
        """Blocks of the longest known prefix."""
        blocks: list[int] = []
        run = self._roots.get(identity)
        while run is not None and len(blocks) < len(keys):
            run = run.children.get(keys[len(blocks)])
            for key, block in zip(run.keys, run.blocks, strict=True) if run else ():
                if len(blocks) == len(keys) or key != keys[len(blocks)]:
                    return blocks
                blocks.append(block)
        return blocks

    def enter(self, trail: Trail, place: int, block: int, before: int | None) -> int:
        """Make a block findable, unless one with its content is."""
        key = trail.keys[place]
        if before is None:
            run = self._roots.setdefault(trail.identity, Run(trail.identity))
        else:
            run = self._runs[before]
        at = place - run.first
        if at < len(run.keys):
            if run.keys[at] == key:
                return run.blocks[at]
            self._split(run, at)
        elif key in run.children:
            return run.children[key].blocks[0]
        elif run.keys and not run.children:
            return self._append(run, key, block)
        run.children[key] = child = Run(run.identity, run, place)
        return self._append(child, key, block)

    def replace(self, block: int, other: int) -> None:
        """Let another block with the same content stand for one."""
        run = self._runs.pop(block)
        run.blocks[run.blocks.index(block)] = other
        self._runs[other] = run

    def forget(self, block: int) -> Iterable[int]:
        """Take a block and all that follow it out of the tree."""
        run = self._runs[block]
        at = -1 if run.blocks[-1] == block else run.blocks.index(block)
        cut = run.blocks[at:]
        for child in run.children.values():
            cut += (other for below in _subtree(child) for other in below.blocks)
        for gone in cut:
            del self._runs[gone]
        first = run.keys[0]
        del run.keys[at:], run.blocks[at:]
        run.children.clear()
        if not run.keys:
            self._remove(run, first)
        return cut[1:]

    def __contains__(self, block: int) -> bool:
        return block in self._runs

    def blocks(self) -> Iterable[int]:
        """Every findable block."""
        return self._runs

    def check_integrity(self) -> None:
        """Every findable block stands in one run, and every run where its parent says."""
        standing: dict[int, Run] = {}
        for root in self._roots.values():
            for run in _subtree(root):
                standing |= dict.fromkeys(run.blocks, run)
                for key, child in run.children.items():
                    right = child.parent is run and child.first == run.first + len(run.keys)
                    if not right or not child.keys or child.keys[0] != key:
                        msg = f"a run of {len(child.keys)} blocks hangs in the wrong place"
                        raise IntegrityError(msg)
        if standing != self._runs:
            msg = f"{len(standing)} blocks stand in the tree, {len(self._runs)} are findable"
            raise IntegrityError(msg)

    def _append(self, run: Run, key: Key, block: int) -> int:
        run.keys.append(key)
        run.blocks.append(block)
        self._runs[block] = run
        return block

    def _split(self, run: Run, at: int) -> None:
        """Cut a run in two; ``run`` stays the upper one, so nothing above it changes."""
        lower = Run(run.identity, run, run.first + at, run.keys[at:], run.blocks[at:])
        lower.children = run.children
        for child in lower.children.values():
            child.parent = lower
        del run.keys[at:], run.blocks[at:]
        run.children = {lower.keys[0]: lower}
        self._runs |= dict.fromkeys(lower.blocks, lower)

    def _remove(self, run: Run, key: Key) -> None:
        """Take an empty run off its parent, and a tree that has no runs left."""
        parent = run.parent
        if parent is not None:
            del parent.children[key]
            if parent.parent is None and not parent.children:
                del self._roots[parent.identity]


def _subtree(run: Run) -> Iterator[Run]:
    """A run and all below it; iteratively, since a path may be long."""
    left = [run]
    while left:
        current = left.pop()
        yield current
        left += current.children.values()


@hookimpl
def enginebay_allocator(options: Options, context: AllocatorContext) -> Allocator:
    """Build the pool."""
    return Reusing(context.num_blocks, context.block_size, RadixIndex())
