"""What every allocator must do. A check takes ``make(num_blocks, block_size, longest)``."""

import random
from collections.abc import Callable
from typing import Final

from .block_traits import IDENTITY, MakeAllocator
from .block_world import NOBODY, BlockWorld
from .check import CheckList, require
from .prefix_checks import PREFIX_CHECKS, require_true_promise

ALLOCATOR_CHECKS: Final = CheckList()
SEEDS: Final = range(6)
NUM_ACTIONS: Final = 120
PROMPT: Final = list(range(100, 130))


@ALLOCATOR_CHECKS.add("allocator/conservation")
def random_histories_conserve(make: MakeAllocator) -> None:
    """Whatever is called, blocks are free or held, and everyone reads what they wrote."""
    for seed in SEEDS:
        noise = random.Random(seed)
        blocks, size = noise.choice((6, 12, 24)), noise.choice((1, 2, 4))
        world = BlockWorld(make, blocks, size, blocks * size // noise.choice((1, 2, 3)))
        for _ in range(NUM_ACTIONS):
            _act(world, noise)
        for sequence_id in list(world.tables):
            world.free(sequence_id)


@ALLOCATOR_CHECKS.add("allocator/exhaustion")
def whole_pool_can_be_used_again_and_again(make: MakeAllocator) -> None:
    """Every block can be held at once, and every block comes back, any number of times."""
    world = BlockWorld(make, 6, 4)
    for round_number in range(20):
        tokens = [round_number, *range(23)]
        found = world.begin(round_number, tokens)
        require(found >= 0, "allocator/exhaustion", "a pool of 6 blocks has no room for 6 blocks")
        require(world.allocator.num_free == 0, "allocator/exhaustion", "blocks stay idle")
        world.publish(round_number, 24)
        world.free(round_number)


@ALLOCATOR_CHECKS.add("allocator/table")
def reservations_rebuild_the_table(make: MakeAllocator) -> None:
    """``first`` and ``block_ids`` of each answer rebuild the table, token by token."""
    world = BlockWorld(make, 12, 4, 24)
    world.begin(1, PROMPT[:6])
    for token in range(12):
        world.write(1, [token])
    world.begin(2, [7, 8, 9])
    world.write(2, PROMPT[:9])
    world.write(1, PROMPT[:3])


@ALLOCATOR_CHECKS.add("allocator/shortfall")
def shortfalls_are_exact_and_change_nothing(make: MakeAllocator) -> None:
    """A failed reserve says how many blocks are missing and leaves everything as it was."""
    for lacking in (1, 2, 5):
        world = BlockWorld(make, 4, 4)
        world.begin(1, PROMPT[:10])
        room = 4 * 4 - 10
        granted = world.write(1, list(range(room + 4 * (lacking - 1) + 1)))
        require(not granted, "allocator/shortfall", "more was granted than the pool holds")
        require(world.write(1, list(range(room))), "allocator/shortfall", "what fits was refused")
    world = BlockWorld(make, 3, 4)
    world.begin(1, PROMPT[:10])
    require(world.begin(2, list(range(9))) < 0, "allocator/shortfall", "a full pool gave blocks")
    world.fork(1, 3, 10)
    require(not world.write(3, [1]), "allocator/shortfall", "a copy was granted without a block")
    world.free(3)
    require(world.write(1, [1, 2]), "allocator/shortfall", "the last block was not written")


@ALLOCATOR_CHECKS.add("allocator/copy-on-write")
def shared_blocks_are_copied_before_a_write(make: MakeAllocator) -> None:
    """A write into a shared block copies it: from the shared block to a fresh one."""
    for writer in (1, 2):
        world = BlockWorld(make, 12, 4, 20)
        world.begin(1, PROMPT[:10])
        world.fork(1, 2, 10)
        world.write(writer, [7])
        world.write(3 - writer, [8, 9, 10, 11])
        world.write(writer, [9] * 6)
    world = BlockWorld(make, 12, 4, 12)
    world.begin(1, PROMPT[:10])
    for child in (2, 3, 4):
        world.fork(1, child, 9)
    for sequence_id in (3, 1, 4, 2):
        world.write(sequence_id, [sequence_id])


@ALLOCATOR_CHECKS.add("allocator/fork")
def forks_share_and_count(make: MakeAllocator) -> None:
    """A fork shares full blocks and the partly filled last one, and outlives its parent."""
    for num_tokens in (1, 4, 7, 8):
        world = BlockWorld(make, 12, 4, 16)
        world.begin(1, PROMPT[:8])
        world.fork(1, 2, num_tokens)
        world.free(1)
        world.begin(3, list(range(16)))
        world.write(2, [5, 6])
        world.free(3)
        world.free(2)


@ALLOCATOR_CHECKS.add("allocator/trim")
def trimming_gives_back(make: MakeAllocator) -> None:
    """Blocks past the trimmed length come back; those before it stay, shared or not."""
    world = BlockWorld(make, 12, 4, 16)
    world.begin(1, PROMPT[:6])
    world.publish(1, 6)
    for kept in (13, 8, 7, 6):
        world.write(1, list(range(14 - len(world.tables[1].tokens))))
        world.trim(1, kept)
    world.write(1, [1] * 6)
    world.fork(1, 2, 12)
    world.trim(2, 8)
    world.write(2, [3])
    world.write(1, [4])


@ALLOCATOR_CHECKS.add("allocator/free")
def freeing_twice_is_harmless(make: MakeAllocator) -> None:
    """A second ``free``, and one of an unknown sequence, change nothing."""
    world = BlockWorld(make, 6, 4, 12)
    world.begin(1, PROMPT[:6])
    world.begin(2, PROMPT[:9])
    for sequence_id in (1, 1, 99, 1):
        world.free(sequence_id)
    world.begin(3, list(range(12)))
    world.free(1)
    world.write(2, [1, 2, 3])


@ALLOCATOR_CHECKS.add("allocator/match-leaves-one")
def a_prompt_is_never_found_whole(make: MakeAllocator) -> None:
    """However much is cached, one token of a prompt is left to compute (case 50)."""
    for length in (3, 4, 5, 8, 12, 13):
        world = BlockWorld(make, 16, 4, 16)
        world.begin(1, PROMPT[:length])
        world.publish(1, length)
        world.begin(2, PROMPT[:length])
        world.free(1)
        world.begin(3, PROMPT[:length])
        world.begin(4, [*PROMPT[:length], 7])


@ALLOCATOR_CHECKS.add("allocator/match-content")
def only_the_same_prefix_is_found(make: MakeAllocator) -> None:
    """A match holds exactly the asked prefix, of the asked identity (case 52)."""
    world = BlockWorld(make, 40, 2, 10)
    world.begin(1, PROMPT[:9])
    world.publish(1, 9)
    clause = "allocator/match-content"
    for other, identity in enumerate((b"", b"other", b"model2", b"mode"), start=2):
        found = world.begin(other, PROMPT[:9], identity)
        require(found <= 0, clause, f"{found} positions of another identity were found")
    shifted = [PROMPT[0], 1, *PROMPT[2:9]]
    require(world.begin(7, shifted) <= 0, clause, "a later block was found without its parent")
    require(world.begin(8, PROMPT[2:9]) <= 0, clause, "a later block was found at the start")
    world.begin(9, [*PROMPT[:4], 1, 2, 3])


@ALLOCATOR_CHECKS.add("allocator/publish")
def only_published_tokens_are_found(make: MakeAllocator) -> None:
    """Tokens that were not published, such as drafts, are never given to others."""
    world = BlockWorld(make, 24, 2, 10)
    world.begin(1, PROMPT[:9])
    clause = "allocator/publish"
    found = world.begin(2, PROMPT[:9])
    require(found <= 0, clause, f"{found} positions were found before any was published")
    world.publish(1, 4)
    found = world.begin(3, PROMPT[:9])
    require(found <= 4, clause, f"{found} positions were found, 4 were published")


@ALLOCATOR_CHECKS.add("allocator/publish-unmatched")
def nothing_is_found_of_whoever_never_matched(make: MakeAllocator) -> None:
    """A sequence that was not matched has no identity: nothing of it is ever found."""
    world = BlockWorld(make, 24, 2, 10)
    world.write(1, PROMPT[:9])
    world.fork(1, 2, 8)
    for sequence_id in (1, 2):
        world.publish(sequence_id, 8)
    for number, identity in enumerate((b"", IDENTITY, NOBODY), start=3):
        found = world.begin(number, PROMPT[:9], identity)
        told = f"{found} positions of a sequence without identity were found"
        require(found <= 0, "allocator/publish-unmatched", told)
        world.free(number)


ALLOCATOR_CHECKS.extend(PREFIX_CHECKS)


def _act(world: BlockWorld, noise: random.Random) -> None:
    """One random call with arguments that an engine could make."""
    ids = list(world.tables)
    chosen = noise.choice(ids) if ids else 0
    actions: list[Callable[[], object]] = [
        lambda: world.begin(world.unused, *_prompt(world, noise)),
        lambda: require_true_promise(world, *_prompt(world, noise)),
    ]
    if ids:
        table = world.tables[chosen]
        written = len(table.tokens)
        room = min(world.longest - written, noise.randint(1, 9))
        more = [noise.randrange(50) for _ in range(room)]
        actions += [
            lambda: world.publish(chosen, noise.randint(table.published, written)),
            lambda: world.trim(chosen, noise.randint(table.published, written)),
            lambda: world.free(chosen),
        ]
        if room:
            actions += [lambda: world.write(chosen, more), lambda: world.write(chosen, more[:1])]
        if written:
            child = world.unused
            actions.append(lambda: world.fork(chosen, child, noise.randint(1, written)))
    noise.choice(actions)()


def _prompt(world: BlockWorld, noise: random.Random) -> tuple[list[int], bytes]:
    """One that shares its beginning with others now and then, and whose it is."""
    tokens = PROMPT[: noise.randint(1, 14)] + [noise.randrange(3) for _ in range(3)]
    return tokens[: world.longest], noise.choice((IDENTITY, b"other"))
