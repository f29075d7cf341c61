"""The allocator checks pass right allocators and catch each wrong one by name."""

import pytest

from enginebay.conformance.allocator_checks import ALLOCATOR_CHECKS
from enginebay.conformance.check import failures
from enginebay.conformance.mutants.allocators import ALLOCATOR_MUTANTS
from enginebay.conformance.mutants.caching import Caching
from enginebay.plugins.allocators.paged import Paged


@pytest.mark.parametrize("check", ALLOCATOR_CHECKS, ids=lambda check: check.id)
@pytest.mark.parametrize("make", [Paged, Caching])
def test_right_allocators_pass(check, make):
    """With and without prefix reuse, every clause holds."""
    check.call(make)


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

    assert not failures(ALLOCATOR_CHECKS, Counting)
    assert Counting.found > 200


def test_ids_are_unique():
    """A report's lines can be told apart."""
    ids = [check.id for check in ALLOCATOR_CHECKS]
    assert len(set(ids)) == len(ids)
    assert all(check.says for check in ALLOCATOR_CHECKS)
