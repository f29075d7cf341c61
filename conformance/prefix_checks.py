"""What an allocator that keeps published blocks must do (``PrefixCaching``).

Others skip these checks, whatever they find or don't find.
"""

from collections.abc import Sequence
from typing import Final

from enginebay.hookspecs.allocator import PrefixCaching

from .block_traits import IDENTITY, MakeAllocator
from .block_world import BlockWorld
from .check import CheckList, Skip, require

PREFIX_CHECKS: Final = CheckList()
PROMPT: Final = list(range(100, 130))
OTHER: Final = list(range(200, 230))


@PREFIX_CHECKS.add("allocator/reuse")
def published_blocks_are_found(make: MakeAllocator) -> None:
    """Every full block that was published is found, before and after its sequence left."""
    world, caching = _caching(make, 16)
    clause = "allocator/reuse"
    world.begin(1, PROMPT[:14])
    world.publish(1, 14)
    for when, cached in (("while it runs", 0), ("after it left", 3)):
        told = f"{caching.num_cached} blocks are said to be cached {when}, not {cached}"
        require(caching.num_cached == cached, clause, told)
        for count, expected in ((14, 12), (13, 12), (12, 8), (6, 4), (4, 0)):
            found = world.found(PROMPT[:count])
            told = f"{found} positions of {count} were found {when}, not {expected}"
            require(found == expected, clause, told)
        world.free(1)
    require(world.found([*PROMPT[:6], 1, 2, 3]) == 4, clause, "a shared beginning was not found")
    require(world.found(PROMPT[:14], b"other") == 0, clause, "another identity found something")


@PREFIX_CHECKS.add("allocator/resume")
def a_preempted_sequence_finds_its_blocks(make: MakeAllocator) -> None:
    """A sequence that lost its blocks finds them again, generated tokens included."""
    world, _ = _caching(make, 16)
    world.begin(1, PROMPT[:6])
    for count in range(7, 19):
        world.write(1, [PROMPT[count - 1]])
        world.publish(1, count - 1)
    world.free(1)
    found = world.begin(1, PROMPT[:18])
    told = f"{found} positions of 17 that it had published were found again, not 16"
    require(found == 16, "allocator/resume", told)
    world.write(1, PROMPT[18:22])
    world.publish(1, 22)
    world.free(1)
    found = world.found(PROMPT[:22])
    told = f"{found} positions were found after the second time, not 20"
    require(found == 20, "allocator/resume", told)


@PREFIX_CHECKS.add("allocator/eviction")
def eviction_takes_the_oldest_and_children_first(make: MakeAllocator) -> None:
    """Free blocks go first, then those unheld for longest, a child before its parent."""
    clause = "allocator/eviction"
    world, caching = _caching(make, 8)
    _cache(world, PROMPT[:17])
    world.begin(9, OTHER[:16])
    require(caching.num_evicted == 0, clause, "a cached block was evicted while others were free")
    for left in (12, 8, 4, 0):
        world.write(9, [left] * 4)
        found = world.found(PROMPT[:17])
        told = f"{found} positions are left of a chain that lost a block, not {left}"
        require(found == left, clause, told)
    require(caching.num_evicted == 4, clause, f"{caching.num_evicted} evictions told of, not 4")
    world, caching = _caching(make, 8)
    _cache(world, PROMPT[:9])
    _cache(world, OTHER[:9])
    world.begin(9, [1] * 16)
    world.found(PROMPT[:9])  # used again: the other chain is the older one now
    for count, mine, other in ((20, 8, 4), (24, 8, 0), (28, 4, 0)):
        world.write(9, [count] * 4)
        both = world.found(OTHER[:9]), world.found(PROMPT[:9])
        told = f"{both} positions are left of the older and the newer chain, not {other, mine}"
        require(both == (other, mine), clause, told)


@PREFIX_CHECKS.add("allocator/reclaim")
def cached_blocks_are_reclaimed(make: MakeAllocator) -> None:
    """Cached blocks count as free and are given out when needed; held ones never are."""
    clause = "allocator/reclaim"
    world, caching = _caching(make, 6)
    _cache(world, PROMPT[:24])
    counts = caching.num_cached, world.allocator.num_free
    require(counts == (6, 6), clause, f"{counts} blocks are cached and free, not all 6")
    require(world.begin(2, OTHER[:24]) == 0, clause, "a pool of cached blocks had no room")
    counts = caching.num_cached, caching.num_evicted
    require(counts == (0, 6), clause, f"{counts} blocks are cached and evicted, not 0 and 6")
    require(world.found(PROMPT[:24]) == 0, clause, "an evicted block was found")
    world.publish(2, 24)
    world.trim(2, 24)
    require(world.begin(3, PROMPT[:4]) == -1, clause, "a published block was taken from its holder")
    world.free(2)
    world.begin(4, [*OTHER[:8], 1])
    require(world.begin(5, PROMPT[:16]) == -1, clause, "a found block was taken from its holder")
    require(world.begin(6, PROMPT[:12]) == 0, clause, "what nobody held was not given out")


@PREFIX_CHECKS.add("allocator/pending")
def promises_are_true(make: MakeAllocator) -> None:
    """``pending`` tells what running sequences will publish past what is found, and no more."""
    world, caching = _caching(make, 24)

    def expect(count: int, tokens: Sequence[int], when: str, identity: bytes = IDENTITY) -> None:
        told = caching.pending(99, identity, tuple(tokens))
        world.allocator.free(99)
        message = f"{told} positions are said to be pending {when}, not {count}"
        require(told == count, "allocator/pending", message)

    expect(0, PROMPT[:14], "before anybody runs")
    world.begin(1, PROMPT[:14])
    expect(12, PROMPT[:14], "while the same prompt runs")
    expect(8, PROMPT[:12], "for a prompt of three blocks, one token of which is left")
    expect(8, [*PROMPT[:10], 1, 2, 3, 4, 5], "for one that parts in the third block")
    expect(0, OTHER[:14], "for another prompt")
    expect(0, PROMPT[4:14], "for a prompt's own second block")
    expect(0, PROMPT[:14], "for another identity", b"other")
    world.publish(1, 6)
    expect(8, PROMPT[:14], "after one block was published")
    world.begin(2, [*PROMPT[:8], *OTHER[:8]])
    expect(12, [*PROMPT[:8], *OTHER[:9]], "where two sequences promise different ends")
    world.publish(1, 14)
    expect(0, PROMPT[:14], "after all was published")
    expect(8, [*PROMPT[:8], *OTHER[:9]], "past what the first published")
    world.free(2)
    expect(0, [*PROMPT[:8], *OTHER[:9]], "for one that was freed")
    expect(0, PROMPT[:14], "after a sequence left and the other had published")
    world.free(1)
    world.begin(3, OTHER[:14])
    world.free(3)
    told = caching.pending(3, IDENTITY, tuple(OTHER[:14]))
    require(told == 0, "allocator/pending", "a preempted sequence would wait for itself")


@PREFIX_CHECKS.add("allocator/rewritten")
def a_rewritten_block_is_not_found(make: MakeAllocator) -> None:
    """Whoever writes other tokens, in a fork or after trimming, gives blocks other names."""
    clause = "allocator/rewritten"
    for length, leaves in ((6, True), (5, True), (10, True), (6, False), (10, False)):
        world, _ = _caching(make, 16)
        world.begin(1, PROMPT[:13])
        world.publish(1, 13)
        world.fork(1, 2, length)
        if leaves:
            world.free(1)
        world.write(2, OTHER[:7])
        world.found(PROMPT[:13])
        world.publish(2, length + 7)
        found = world.found([*PROMPT[:length], *OTHER[:7], 1])
        told = f"{found} positions of a fork with an end of its own were found"
        require(found == (length + 7) // 4 * 4, clause, told)
        world.free(2)
        world.found(PROMPT[:13])
    world, _ = _caching(make, 16)
    world.begin(1, PROMPT[:13])
    world.publish(1, 4)
    world.trim(1, 4)
    world.write(1, OTHER[:8])
    world.publish(1, 12)
    require(world.found(PROMPT[:13]) == 4, clause, "trimmed tokens were found")
    found = world.found([*PROMPT[:4], *OTHER[:8], 1])
    require(found == 12, clause, f"{found} positions written after trimming were found, not 12")


@PREFIX_CHECKS.add("allocator/twins")
def what_two_computed_is_kept_once(make: MakeAllocator) -> None:
    """Two sequences that computed one prefix each keep their blocks; one copy is cached."""
    clause = "allocator/twins"
    for first, second in ((1, 2), (2, 1)):
        world, caching = _caching(make, 16)
        world.begin(1, PROMPT[:9])
        world.begin(2, PROMPT[:13])
        world.publish(first, 9)
        world.publish(second, 9)
        world.publish(2, 13)
        world.free(first)
        room = world.allocator.num_free * 4
        require(world.begin(9, [1] * room) == 0, clause, "free blocks were not given out")
        world.free(9)
        require(world.found(PROMPT[:9]) == 8, clause, "what a running sequence holds was lost")
        world.free(second)
        count = 3 if second == 2 else 2
        told = f"{caching.num_cached} blocks are cached for a prefix of {count}"
        require(caching.num_cached == count, clause, told)
        found = world.found(PROMPT[:13])
        require(found == 4 * count, clause, "a part of the prefix was lost")


def require_true_promise(world: BlockWorld, tokens: Sequence[int], identity: bytes) -> None:
    """Hold ``pending`` against what the sequences of the world are known to promise."""
    if not isinstance(world.allocator, PrefixCaching):
        return
    told = world.allocator.pending(world.unused, identity, tuple(tokens))
    found, size = world.found(tokens, identity), world.block_size
    longest = found
    for table in world.tables.values():
        if table.identity != identity:
            continue
        shared = 0
        for mine, other in zip(tokens[:-1], table.asked, strict=False):
            if mine != other:
                break
            shared += 1
        shared = min(shared, len(table.asked) // size * size) // size * size
        if table.published // size * size < shared:
            longest = max(longest, shared)
    message = f"{told} positions are said to be pending, {longest - found} are"
    require(told == longest - found, "allocator/pending", message)


def _caching(make: MakeAllocator, num_blocks: int) -> tuple[BlockWorld, PrefixCaching]:
    """A world with blocks of 4 over an allocator that caches. :raises Skip: it does not"""
    world = BlockWorld(make, num_blocks, 4)
    if not isinstance(world.allocator, PrefixCaching):
        reason = "it keeps nothing for others to find (no PrefixCaching)"
        raise Skip(reason)
    return world, world.allocator


def _cache(world: BlockWorld, tokens: list[int]) -> None:
    """Compute, publish and leave."""
    sequence_id = world.unused
    world.begin(sequence_id, tokens)
    world.publish(sequence_id, len(tokens))
    world.free(sequence_id)
