"""The scheduler checks pass the chunked policy and catch each wrong one by name."""

import pytest

from enginebay.conformance.check import failures
from enginebay.conformance.mutants.schedulers import SCHEDULER_MUTANTS
from enginebay.conformance.scheduler_checks import SCHEDULER_CHECKS
from enginebay.plugins.schedulers.chunked import Chunked, Options


@pytest.mark.parametrize("check", SCHEDULER_CHECKS, ids=lambda check: check.id)
def test_chunked_passes(check):
    """The default policy keeps every clause."""
    check.call(lambda limits: Chunked(Options(), limits))


def test_small_chunks_pass_too():
    """Options change how prompts are cut, never whether requests end."""
    failed = failures(
        [check for check in SCHEDULER_CHECKS if check.id != "scheduler/cost"],
        lambda limits: Chunked(Options(max_chunk=2), limits),
    )
    assert failed == {}


@pytest.mark.parametrize("mutant", SCHEDULER_MUTANTS, ids=lambda mutant: mutant.fault)
def test_mutants_are_caught_by_name(mutant):
    """The check that guards the broken clause fails."""
    guarding = [check for check in SCHEDULER_CHECKS if check.id == mutant.caught_by]
    found = failures(guarding, mutant.make)
    assert "scheduler/" in found[mutant.caught_by]
