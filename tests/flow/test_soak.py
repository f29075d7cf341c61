"""The soak: random engines, arrivals, cancels, slow readers, refusals and preemptions, with
every rule held up at every step. Seeds follow the commit, so that each one sees others."""

import subprocess
from pathlib import Path

import pytest

from enginebay import engine as engine_module
from enginebay.build import StepBuilder
from enginebay.commands.terminal import quiet_logs
from enginebay.conformance.mutants.allocators import ALLOCATOR_MUTANTS
from enginebay.conformance.mutants.schedulers import SCHEDULER_MUTANTS
from enginebay.roster import Roster
from enginebay.simulation.parts import Parts, shipped
from enginebay.simulation.shrink import failure
from enginebay.simulation.soak import loaded, soak_worlds, stored, told
from enginebay.swap import SwapSpace

STEPS = 100_000
SHARES = 10
"""Parts into which the soak is cut, so that a slow machine needs no longer time limit."""
SPREAD = 100_000
"""Seeds between the beginnings of two shares."""
FALLBACK = 20_261_129
ENOUGH = 6_000
"""Steps within which each fault must be found."""


def first_seed():
    """From the commit, where there is one."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=root
    )
    return int(done.stdout[:8], 16) if done.returncode == 0 and done.stdout else FALLBACK


@pytest.fixture(autouse=True)
def quiet():
    """Preemptions are logged, and there are thousands."""
    quiet_logs("critical")


@pytest.mark.parametrize("share", range(SHARES))
def test_no_rule_is_broken(share):
    """A share of 100,000 steps over all shipped policies; a failure shows how to see it again."""
    seed = first_seed() + share * SPREAD
    print(f"seeds from {seed} on")
    soaked = soak_worlds(shipped(), steps=STEPS // SHARES, seed=seed)
    if soaked.found is not None:
        file = f"soak-{soaked.found.seed}.json"
        world = stored(soaked.found.shrunk).decode()
        pytest.fail(f"{told(soaked.found, file)}\nwhere {file} holds:\n{world}")
    assert soaked.steps >= STEPS // SHARES
    for trouble in ("preempted", "preempted for nothing", "reservations refused for nothing"):
        assert soaked.counts[trouble] > 0, f"a soak without {trouble!r} proves little"
    for reason in ("cancelled", "deadline", "length", "slow_reader", "stop"):
        assert soaked.counts[f"ended: {reason}"] > 0, reason


def policies(*, scheduler=None, allocator=None):
    """All worlds have one faulty part."""
    parts = Parts(
        schedulers=["faulty" if scheduler else "chunked"],
        allocators=["faulty" if allocator else "paged"],
    )
    if scheduler:
        parts.made_schedulers["faulty"] = lambda limits, options: scheduler(limits)
    if allocator:
        parts.made_allocators["faulty"] = lambda limits, options: allocator(
            limits.num_blocks, limits.block_size, limits.max_model_len
        )
    return parts


def found_in(parts, most_requests):
    """The fault is found, shrunk, and found again in what was stored."""
    soaked = soak_worlds(parts, steps=ENOUGH)
    assert soaked.found is not None, f"nothing was found in {soaked.steps} steps"
    world = loaded(stored(soaked.found.shrunk), "memory")
    assert len(world.visits) <= most_requests
    assert failure(world, parts)[0] == soaked.found.clause
    assert f"--seed {soaked.found.seed}" in told(soaked.found, "file")
    return soaked.found.clause


SCHEDULERS = {mutant.fault: mutant.make for mutant in SCHEDULER_MUTANTS}
LOST = ("loses a request", "drops what does not fit", "ignores the preempted", "counts the past")
ALLOCATORS = {mutant.fault: mutant.make for mutant in ALLOCATOR_MUTANTS}
CORRUPT = (
    "leaks a block on free",
    "frees twice",
    "forgets to copy on write",
    "copies backwards",
    "reports a wrong first entry",
    "forks without counting",
    "forks full blocks only",
)


@pytest.mark.parametrize("fault", [*LOST, "forgets to remove"])
def test_a_policy_that_loses_count_is_found(fault):
    """Who waits in the engine waits in the policy, at every step."""
    assert found_in(policies(scheduler=SCHEDULERS[fault]), 8) == "soak/queue"


def test_a_policy_that_idles_is_found():
    """It waits for a fourth request that never comes."""
    parts = policies(scheduler=SCHEDULERS["waits for a batch"])
    assert found_in(parts, 3) == "soak/work-conserving"


def test_a_policy_that_starves_is_found():
    """The oldest of many equals is never begun; it takes more than 64 others to see it."""
    parts = policies(scheduler=SCHEDULERS["serves the last come first"])
    assert found_in(parts, 150) == "soak/no-starvation"


@pytest.mark.parametrize("fault", CORRUPT)
def test_an_allocator_that_corrupts_is_found(fault):
    """Lost blocks, blocks in two hands, and blocks with the wrong bytes in them; or the
    engine itself ends with it."""
    clauses = {"soak/integrity", "soak/blocks", "plan/content", "plan/write-alone", "plan/table"}
    clauses.add("soak/end")
    assert found_in(policies(allocator=ALLOCATORS[fault]), 8) in clauses


def test_a_builder_that_overcommits_is_found(monkeypatch):
    """One that grants more tokens than a step may compute."""

    class Generous(StepBuilder):
        def __init__(self, *args):
            super().__init__(*args)
            self._tokens_left += 1

    monkeypatch.setattr(engine_module, "StepBuilder", Generous)
    assert found_in(policies(), 2) == "plan/tokens"


def test_an_end_that_is_told_twice_is_found(monkeypatch):
    """A roster that says the last word again."""
    take = Roster.take_events

    def twice(self):
        return [(client, [*events, events[-1]]) for client, events in take(self)]

    monkeypatch.setattr(Roster, "take_events", twice)
    assert found_in(policies(), 2).startswith("events/")


def test_a_swap_space_that_mixes_up_slots_is_found(monkeypatch):
    """What comes back from host memory is somebody else's."""
    save = SwapSpace.save

    def backwards(self, sequence_id, table, num_tokens):
        ops = save(self, sequence_id, table, num_tokens)
        targets = [op.target for op in reversed(ops)]
        made = [(op.kind, op.source, target) for op, target in zip(ops, targets, strict=True)]
        return [type(ops[0])(kind=k, source=s, target=t) for k, s, t in made]

    monkeypatch.setattr(SwapSpace, "save", backwards)
    assert found_in(policies(), 6) == "plan/content"
