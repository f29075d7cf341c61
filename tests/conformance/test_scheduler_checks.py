"""The scheduler checks pass every policy that ships and catch each wrong one by name."""

import pytest

from enginebay.conformance.check import failures
from enginebay.conformance.mutants.schedulers import SCHEDULER_MUTANTS
from enginebay.conformance.scheduler_checks import SCHEDULER_CHECKS
from enginebay.hookspecs.families import FAMILIES
from enginebay.hookspecs.scheduler import SchedulerContext
from enginebay.plugins.schedulers.chunked import Chunked, Options
from enginebay.registry import Registry, discover
from enginebay.stack import Entry

FAMILY = FAMILIES["scheduler"]
POLICIES = sorted(found.name for found in discover(FAMILY) if found.distribution == "enginebay")


@pytest.fixture(scope="module")
def registry():
    """Plugins are loaded once."""
    return Registry()


def test_the_policies_of_the_field_are_all_judged():
    """Whatever has an entry point is: this list may grow by itself, not shrink."""
    assert {"static", "dynamic", "fcfs", "prefill-first", "decode-first", "chunked"} <= {*POLICIES}


@pytest.mark.parametrize("check", SCHEDULER_CHECKS, ids=lambda check: check.id)
@pytest.mark.parametrize("policy", POLICIES)
def test_policies_pass(policy, check, registry):
    """Every policy keeps every clause with its default options."""
    registry.load(FAMILY, policy)
    entry = Entry(slot=FAMILY.slots[0], use=policy, name=policy)
    check.call(lambda limits: registry.build(FAMILY, entry, SchedulerContext(limits=limits)))


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
