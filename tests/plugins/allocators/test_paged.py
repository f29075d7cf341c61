"""The paged pool: tables, counts, copies on write, and corruption that does not go unseen."""

import pytest

from enginebay.errors import IntegrityError
from enginebay.flow import BlockOp
from enginebay.hookspecs.allocator import AllocatorContext, Reservation, Shortfall
from enginebay.plugins.allocators.paged import Options, Paged, enginebay_allocator


@pytest.fixture
def pool():
    """Six blocks of four tokens."""
    return enginebay_allocator(Options(), AllocatorContext(num_blocks=6, block_size=4))


def test_tables_grow_by_whole_blocks(pool):
    """Only what a reservation adds is reported; room in the last block costs nothing."""
    assert pool.reserve(1, 0, 5) == Reservation(first=0, block_ids=(0, 1))
    assert pool.reserve(1, 5, 8) == Reservation(first=2)
    assert pool.reserve(1, 8, 9) == Reservation(first=2, block_ids=(2,))
    assert pool.num_free == 3


def test_blocks_are_reused_oldest_first(pool):
    """The longest idle block is handed out next, the newest freed one last."""
    pool.reserve(1, 0, 8)
    pool.reserve(2, 0, 4)
    pool.free(1)
    assert pool.reserve(3, 0, 4 * 5).block_ids == (3, 4, 5, 1, 0)


def test_a_failed_reservation_counts_copies_too(pool):
    """A shared block that would be written needs a fresh one, like any growth."""
    pool.reserve(1, 0, 22)
    pool.fork(1, 2, 22)
    assert pool.reserve(2, 22, 30) == Shortfall(missing=3)
    assert pool.reserve(3, 0, 1) == Shortfall(missing=1)
    assert 3 not in pool.tables
    pool.free(2)
    assert pool.reserve(1, 22, 24) == Reservation(first=6)


def test_the_last_holder_writes_in_place(pool):
    """One copy for the first writer; then the block has one holder left."""
    pool.reserve(1, 0, 6)
    pool.fork(1, 2, 6)
    copied = pool.reserve(2, 6, 7)
    assert copied == Reservation(
        first=1, block_ids=(2,), ops=(BlockOp(kind="copy", source=1, target=2),)
    )
    assert pool.reserve(1, 6, 7) == Reservation(first=2)


def test_a_fork_shares_as_far_as_it_was_asked(pool):
    """The blocks of the first positions, the partly used one among them, and no more."""
    pool.reserve(1, 0, 16)
    match = pool.fork(1, 2, 9)
    assert (match.num_tokens, match.block_ids) == (9, (0, 1, 2))
    assert pool.num_free == 2


def test_a_fork_into_a_sequence_that_has_blocks_is_an_error(pool):
    """It would lose them."""
    pool.reserve(1, 0, 4)
    pool.reserve(2, 0, 4)
    with pytest.raises(IntegrityError, match="sequence 2"):
        pool.fork(1, 2, 4)
    pool.check_integrity()


def test_trimming_keeps_what_is_needed(pool):
    """Blocks past the length come back, a partly used one stays."""
    pool.reserve(1, 0, 17)
    pool.trim(1, 9)
    assert pool.tables[1] == [0, 1, 2]
    assert pool.num_free == 3


def test_nothing_is_cached(pool):
    """Published tokens are forgotten: that is another plugin's work."""
    pool.match(1, b"x", (1, 2, 3, 4, 5))
    pool.reserve(1, 0, 5)
    pool.publish(1, [1, 2, 3, 4, 5], 5)
    assert pool.match(2, b"x", (1, 2, 3, 4, 5)).num_tokens == 0


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda pool: pool.tables[1].append(0), "counted differently"),
        (lambda pool: pool._counts.__setitem__(0, 2), "counted differently"),
        (lambda pool: pool._free.append(5), "twice"),
        (lambda pool: pool._free.pop(), "lost"),
        (lambda pool: pool._free.append(0), "free and held"),
    ],
)
def test_corruption_is_seen(pool, damage, told):
    """A wrong count, a leak and a double use each stop the engine."""
    pool.reserve(1, 0, 4)
    pool.check_integrity()
    damage(pool)
    with pytest.raises(IntegrityError, match=told):
        pool.check_integrity()


def test_an_empty_pool_gives_nothing():
    """Zero blocks: every reservation says how many are missing."""
    assert Paged(0, 4).reserve(1, 0, 9) == Shortfall(missing=3)
