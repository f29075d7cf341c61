"""The allocator checks pass right allocators and catch each wrong one by name."""

import pytest

from enginebay.conformance.allocator_checks import ALLOCATOR_CHECKS
from enginebay.conformance.block_traits import any_length, traits_of
from enginebay.conformance.check import Skip, failures
from enginebay.conformance.mutants.allocators import ALLOCATOR_MUTANTS
from enginebay.conformance.mutants.caching import Caching
from enginebay.conformance.prefix_checks import PREFIX_CHECKS
from enginebay.hookspecs.allocator import AllocatorContext
from enginebay.plugins.allocators import contiguous, paged, prefix_hash, prefix_radix
from enginebay.plugins.allocators.contiguous import Contiguous
from enginebay.plugins.allocators.paged import Paged


def shipped(module):
    """A factory of what a plugin's hook builds."""
    return lambda *context: module.enginebay_allocator(module.Options(), AllocatorContext(*context))


ALLOCATORS = {
    "paged": shipped(paged),
    "contiguous": shipped(contiguous),
    "prefix-hash": shipped(prefix_hash),
    "prefix-radix": shipped(prefix_radix),
    "caching": any_length(Caching),
}
WITHOUT_REUSE = ("paged", "contiguous")


@pytest.mark.parametrize("check", ALLOCATOR_CHECKS, ids=lambda check: check.id)
@pytest.mark.parametrize("name", ALLOCATORS)
def test_right_allocators_pass(check, name):
    """Every clause holds; what concerns reuse is skipped by those that keep nothing."""
    try:
        check.call(ALLOCATORS[name])
        skipped = False
    except Skip:
        skipped = True
    about_reuse = check.id in {other.id for other in PREFIX_CHECKS}
    assert skipped == (about_reuse and name in WITHOUT_REUSE)


@pytest.mark.parametrize("mutant", ALLOCATOR_MUTANTS, ids=lambda mutant: mutant.fault)
def test_mutants_are_caught_by_name(mutant):
    """The check that guards the clause fails, and its message starts with a clause."""
    found = failures(ALLOCATOR_CHECKS, mutant.make)
    assert mutant.caught_by in found
    assert "allocator/" in found[mutant.caught_by]


def test_prefix_reuse_is_exercised():
    """Histories do find cached blocks: else the match checks would prove nothing."""

    class Counting(Caching):
        found = 0

        def match(self, sequence_id, identity, token_ids):
            match = super().match(sequence_id, identity, token_ids)
            Counting.found += match.num_tokens
            return match

    assert not failures(ALLOCATOR_CHECKS, any_length(Counting))
    assert Counting.found > 200


def test_ids_are_unique():
    """A report's lines can be told apart."""
    ids = [check.id for check in ALLOCATOR_CHECKS]
    assert len(set(ids)) == len(ids)
    assert all(check.says for check in ALLOCATOR_CHECKS)


def test_choices_are_seen():
    """Regions and tables as long as needed are told apart, and so is what forks share."""
    assert (traits_of(any_length(Paged)).exact, traits_of(Contiguous).exact) == (True, False)
    sharing = {name: traits_of(make).sharing for name, make in ALLOCATORS.items()}
    assert sharing.pop("contiguous") == "none"
    assert set(sharing.values()) == {"all"}
