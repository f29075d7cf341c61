"""Regions for the longest sequence each: the baseline, with all its waste."""

import pytest

from enginebay.errors import IntegrityError
from enginebay.hookspecs.allocator import AllocatorContext, Match, Reservation, Shortfall
from enginebay.plugins.allocators.contiguous import Contiguous, Options, enginebay_allocator


@pytest.fixture
def pool():
    """Ten blocks of four tokens for sequences of at most fifteen: two regions of five."""
    context = AllocatorContext(num_blocks=10, block_size=4, max_model_len=15)
    return enginebay_allocator(Options(), context)


def test_a_sequence_gets_its_region_at_once(pool):
    """One token takes as much as the longest sequence, and growing costs nothing."""
    assert pool.reserve(1, 0, 1) == Reservation(first=0, block_ids=(0, 1, 2, 3, 4))
    assert pool.num_free == 5
    assert pool.reserve(1, 1, 15) == Reservation(first=5)


def test_regions_are_consecutive_and_cover_the_pool():
    """What the division leaves over makes some regions longer: no block is lost."""
    for num_blocks, longest in ((10, 12), (11, 16), (7, 28), (5, 400), (9, 0), (3, 4)):
        pool = Contiguous(num_blocks, 4, longest)
        assert [block for region in pool.regions for block in region] == list(range(num_blocks))
        assert pool.num_free == num_blocks
        assert all(4 * len(region) >= min(longest, 4 * num_blocks) for region in pool.regions)


def test_no_region_means_no_room(pool):
    """However short a sequence is: the missing blocks are counted from nothing."""
    pool.reserve(1, 0, 1)
    pool.reserve(2, 0, 1)
    assert pool.num_free == 0
    assert pool.reserve(3, 0, 9) == Shortfall(missing=3)
    pool.free(1)
    assert pool.reserve(3, 0, 9) == Reservation(first=0, block_ids=(0, 1, 2, 3, 4))


def test_longer_than_a_region_is_too_long(pool):
    """A sequence past the longest gets nothing more, whatever is free."""
    assert pool.reserve(1, 0, 29) == Shortfall(missing=3)
    pool.reserve(1, 0, 20)
    assert pool.reserve(1, 20, 21) == Shortfall(missing=1)


def test_nothing_is_shared_or_given_back_early(pool):
    """A fork gets nothing and takes nothing; trimming changes nothing."""
    pool.reserve(1, 0, 12)
    assert pool.fork(1, 2, 12) == Match()
    pool.trim(1, 1)
    pool.publish(1, list(range(12)), 12)
    assert pool.match(3, b"x", tuple(range(12))) == Match()
    assert pool.num_free == 5
    pool.free(1)
    pool.free(1)
    assert pool.num_free == 10


@pytest.mark.parametrize(
    "damage", [lambda pool: pool._free.pop(), lambda pool: pool._free.append(0)]
)
def test_corruption_is_seen(pool, damage):
    """A lost region and one given twice each stop the engine."""
    pool.reserve(1, 0, 4)
    pool.check_integrity()
    damage(pool)
    with pytest.raises(IntegrityError, match="lost or given twice"):
        pool.check_integrity()


def test_an_empty_pool_gives_nothing():
    """Zero blocks: every reservation says how many are missing."""
    assert Contiguous(0, 4, 100).reserve(1, 0, 9) == Shortfall(missing=3)
