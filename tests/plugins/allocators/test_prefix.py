"""Prefix reuse by hashes and by a tree: what is found, what stays private, what it costs."""

import hashlib
import struct

import pytest

from enginebay.errors import IntegrityError
from enginebay.hookspecs.allocator import AllocatorContext, PrefixCaching, Reservation
from enginebay.plugins.allocators import prefix_hash, prefix_radix

TOKENS = tuple(range(100, 140))


@pytest.fixture(params=[prefix_hash, prefix_radix], ids=["hash", "radix"])
def pool(request):
    """Twelve blocks of four tokens."""
    plugin = request.param
    return plugin.enginebay_allocator(plugin.Options(), AllocatorContext(12, 4))


def compute(pool, sequence_id, tokens, identity=b"a", publish=None):
    """Match, reserve and publish as an engine does; positions found."""
    found = pool.match(sequence_id, identity, tuple(tokens)).num_tokens
    assert isinstance(pool.reserve(sequence_id, found, len(tokens)), Reservation)
    pool.publish(sequence_id, list(tokens), len(tokens) if publish is None else publish)
    pool.check_integrity()
    return found


def test_it_is_a_prefix_cache(pool):
    """The core asks it what is pending."""
    assert isinstance(pool, PrefixCaching)


def test_a_twin_stays_private_while_the_first_is_held(pool):
    """Who computed the same block later keeps its own; others find the first one's."""
    pool.match(1, b"a", TOKENS[:9])
    pool.match(2, b"a", TOKENS[:9])
    for sequence_id in (1, 2):
        pool.reserve(sequence_id, 0, 9)
        pool.publish(sequence_id, list(TOKENS[:9]), 9)
    assert pool.tables == {1: [0, 1, 2], 2: [3, 4, 5]}
    assert pool.match(3, b"a", TOKENS[:9]).block_ids == (0, 1)
    pool.check_integrity()


def test_a_twin_takes_over_when_the_first_leaves(pool):
    """What follows a twin stays reachable, however much is evicted meanwhile."""
    pool.match(1, b"a", TOKENS[:5])
    pool.match(2, b"a", TOKENS[:13])
    pool.reserve(1, 0, 5)
    pool.reserve(2, 0, 13)
    pool.publish(1, list(TOKENS[:5]), 5)
    pool.publish(2, list(TOKENS[:13]), 13)
    pool.free(1)
    assert (pool.num_cached, pool.num_free) == (0, 8)
    pool.reserve(9, 0, 8 * 4)  # everything that could be evicted is taken
    pool.free(9)
    pool.free(2)
    assert pool.match(3, b"a", TOKENS[:13]).num_tokens == 12
    pool.check_integrity()


def test_a_twin_replaces_a_cached_block(pool):
    """Nobody holds the first one any more: it is free at once, and nothing is kept twice."""
    pool.match(2, b"a", TOKENS[:5])
    pool.reserve(2, 0, 5)
    compute(pool, 1, TOKENS[:5])
    pool.free(1)
    assert pool.num_cached == 1
    pool.publish(2, list(TOKENS[:5]), 5)
    pool.check_integrity()
    assert (pool.num_cached, pool.num_free) == (0, 10)
    assert pool.match(3, b"a", TOKENS[:9]).block_ids == tuple(pool.tables[2][:1])


def test_publishing_between_two_blocks_costs_nothing(pool, monkeypatch):
    """Each full block is named once in a sequence's life, and looked up only when found."""
    named = []
    key = pool.index.key
    monkeypatch.setattr(
        pool.index, "key", lambda *arguments: named.append(arguments[2]) or key(*arguments)
    )
    for _ in range(3):
        assert pool.pending(1, b"a", TOKENS[:9]) == 0
    compute(pool, 1, TOKENS[:9], publish=0)
    for count in range(1, 18):
        pool.reserve(1, count - 1, count)
        pool.publish(1, list(TOKENS[:18]), count)
    assert [tuple(tokens) for tokens in named] == [TOKENS[n : n + 4] for n in (0, 4, 8, 12)]


def test_what_was_asked_about_is_forgotten(pool):
    """A sequence that leaves before it starts leaves nothing behind."""
    pool.pending(1, b"a", TOKENS)
    pool.free(1)
    assert not pool._asked
    compute(pool, 1, TOKENS[:9])
    assert pool._promises._by_start == {}
    pool.free(1)
    left = [pool._asked, pool._trails, pool._promises._by_start]
    assert left == [{}, {}, {}]


def test_other_tokens_under_one_id_are_named_anew(pool):
    """What was asked before is used for the same prompt and identity alone."""
    compute(pool, 1, TOKENS[:9])
    pool.pending(2, b"a", TOKENS[20:29])
    assert pool.match(2, b"a", TOKENS[:9]).num_tokens == 8
    pool.pending(3, b"b", TOKENS[:9])
    assert pool.match(3, b"a", TOKENS[:9]).num_tokens == 8


def test_a_sequence_is_matched_once(pool):
    """A second match would lose the blocks of the first."""
    compute(pool, 1, TOKENS[:9])
    with pytest.raises(IntegrityError, match="sequence 1"):
        pool.match(1, b"a", TOKENS[:9])


def test_trimmed_tokens_are_named_again(pool):
    """A name never outlives the tokens that it was made from."""
    pool.match(1, b"a", TOKENS[:13])
    pool.reserve(1, 0, 13)
    pool.publish(1, list(TOKENS[:4]), 4)
    pool.trim(1, 4)
    other = [*TOKENS[:4], *TOKENS[30:38]]
    pool.reserve(1, 4, 12)
    pool.publish(1, other, 12)
    pool.free(1)
    assert pool.match(2, b"a", TOKENS[:13]).num_tokens == 4
    pool.free(2)
    assert pool.match(2, b"a", (*other, 1)).num_tokens == 12


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda pool: pool._cached.popitem(), "lost"),
        (lambda pool: pool._cached.update({pool.tables[1][0]: None}), "held at once"),
        (lambda pool: pool.index.forget(pool.tables[1][1]), "kept as a twin"),
        (lambda pool: pool.index.replace(6, 11), "findable"),
        (lambda pool: pool._twins.add(0, 9), "twin of 0"),
    ],
)
def test_corruption_is_seen(pool, damage, told):
    """Books that don't agree stop the engine."""
    pool.match(2, b"a", TOKENS[:9])
    compute(pool, 1, TOKENS[:9])
    pool.reserve(2, 0, 9)
    pool.publish(2, list(TOKENS[:9]), 9)
    compute(pool, 3, TOKENS[20:29])
    pool.free(3)
    pool.check_integrity()
    damage(pool)
    with pytest.raises(IntegrityError, match=told):
        pool.check_integrity()


def test_names_are_chained_hashes():
    """SHA-256 over the name before and the tokens; the identity's hash before the first."""
    index = prefix_hash.HashIndex(2)
    first = hashlib.sha256(hashlib.sha256(b"me").digest() + struct.pack("<2q", 5, 6)).digest()
    second = hashlib.sha256(first + struct.pack("<2q", 7, 8)).digest()
    assert index.key(b"me", [], (5, 6)) == first
    assert index.key(b"me", [first], (7, 8)) == second


def test_runs_are_split_where_prefixes_part():
    """One run while nobody parts from it; then a run above and one for each end."""
    pool = prefix_radix.enginebay_allocator(prefix_radix.Options(), AllocatorContext(12, 4))
    compute(pool, 1, TOKENS[:17])
    root = pool.index._roots[b"a"]
    (run,) = root.children.values()
    assert (run.blocks, run.children) == ([0, 1, 2, 3], {})
    compute(pool, 2, [*TOKENS[:8], *TOKENS[20:29]])
    (run,) = root.children.values()
    assert run.blocks == [0, 1]
    assert sorted(child.blocks for child in run.children.values()) == [[2, 3], [5, 6]]
    for sequence_id in (1, 2):
        pool.free(sequence_id)
    pool.reserve(9, 0, 12 * 4)
    assert not pool.index._roots
    pool.check_integrity()
