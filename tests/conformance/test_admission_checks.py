"""The admission checks pass every shipped member and catch each wrong one by name."""

import pytest

from enginebay.conformance.admission_checks import ADMISSION_CHECKS
from enginebay.conformance.check import Skip, failures
from enginebay.conformance.lobby import CONTEXT, Lobby, weight
from enginebay.conformance.mutants.admission import ADMISSION_MUTANTS
from enginebay.conformance.suite import entry_of, judge, plan_plugin
from enginebay.plugins.admission import (
    bounded_queue,
    context_length,
    deadline,
    kv_budget,
    rate_limit,
    retry_budget,
    tenant_quota,
    token_budget,
)

MEMBERS = {
    "queue": (bounded_queue, {"max_waiting": 12}),
    "queue of tokens": (bounded_queue, {"max_waiting": 0, "max_waiting_tokens": 900}),
    "context": (context_length, {}),
    "deadline": (deadline, {}),
    "deadline of the answer": (deadline, {"counts": "longest"}),
    "kv": (kv_budget, {}),
    "kv guaranteed": (kv_budget, {"mode": "guaranteed"}),
    "kv overcommitted": (kv_budget, {"overcommit": 6.0, "output_share": 0.3}),
    "rate": (rate_limit, {"requests": 10.0}),
    "rate of tokens": (rate_limit, {"requests": 0.0, "tokens": 9000.0}),
    "rate of both": (rate_limit, {"requests": 3.0, "tokens": 9000.0, "burst_tokens": 5000.0}),
    "retries": (retry_budget, {}),
    "quota": (tenant_quota, {}),
    "quota of choices": (tenant_quota, {"max_requests": 0, "max_choices": 40}),
    "tokens": (token_budget, {"max_prompt_tokens": 500}),
    "tokens of answers": (token_budget, {"max_output_tokens": 9000}),
}
FILLED = set(MEMBERS) - {"context", "kv"}


def maker(name, **more):
    module, options = MEMBERS[name]
    built = module.Options(**options, **more)
    return lambda context: module.enginebay_admission(built, context)


@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_passes(name):
    """No clause is broken, and whatever can be filled is judged full."""
    skipped = set()
    for check in ADMISSION_CHECKS:
        if check.id in ("admission/growth", "admission/cost") and " " in name:
            continue
        try:
            check.call(maker(name))
        except Skip:
            skipped.add(check.id)
    assert ("admission/retry-after" in skipped) == (name not in FILLED)


@pytest.mark.parametrize("mutant", ADMISSION_MUTANTS, ids=lambda mutant: mutant.fault)
def test_mutants_are_caught_by_name(mutant):
    """The check that guards the broken clause fails."""
    guarding = [check for check in ADMISSION_CHECKS if check.id == mutant.caught_by]
    found = failures(guarding, mutant.make)
    assert mutant.caught_by in found


def test_every_clause_has_a_mutant():
    """No check is there that nothing was ever caught by."""
    assert {check.id for check in ADMISSION_CHECKS} == {m.caught_by for m in ADMISSION_MUTANTS}


def test_the_suite_judges_a_member_by_name():
    """``enginebay conform --plugin admission:rate-limit`` runs every clause."""
    tasks = plan_plugin(entry_of("admission:rate-limit"))
    assert [task.check.id for task in tasks] == [check.id for check in ADMISSION_CHECKS]
    assert judge(tasks[:4]).summary() == "4 passed, 0 failed, 0 skipped"


def test_the_lobbys_load_is_true():
    """Choices beyond the seats wait, with their prompt's tokens."""
    lobby = Lobby(maker("queue", max_waiting_tokens=0), CONTEXT)
    for number in range(2):
        assert lobby.ask(lobby.light(f"r{number}", n=3, num_prompt_tokens=10)) is None
    load = lobby.load()
    assert (load.num_running, load.num_waiting, load.waiting_tokens) == (4, 2, 20)
    lobby.end("r0")
    assert (lobby.load().num_running, lobby.load().num_waiting) == (3, 0)


def test_a_weight_counts_what_is_held():
    """Dictionaries, their contents, and objects with slots."""

    class Slotted:
        __slots__ = ("kept",)

    thing = Slotted()
    thing.kept = {"a": [1, 2, 3], "b": []}
    assert weight(thing) == 5
