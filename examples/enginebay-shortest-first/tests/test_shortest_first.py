"""The policy alone, with a builder that grants; then found, chosen and run for real."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from enginebay_shortest_first import Options, enginebay_scheduler

from enginebay import LLM, SamplingParams
from enginebay.conformance.check import Check
from enginebay.conformance.scheduler_checks import SCHEDULER_CHECKS
from enginebay.conformance.tiny import write_tiny
from enginebay.errors import StackError
from enginebay.hookspecs import FAMILIES
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import Grant, Scheduler, SchedulerContext
from enginebay.registry import Registry

LIMITS = Limits(max_model_len=64, max_step_tokens=99, max_sequences=4, block_size=16, num_blocks=8)

EXACT = {"engine.require_row_invariant": True, "engine.max_step_tokens": 16}


@dataclass
class Work:
    """As much of a sequence as the policy looks at."""

    id: int
    num_prompt: int
    max_tokens: int = 8
    arrival: float = 0.0
    num_computed: int = 0


@dataclass
class Builder:
    """Grants every call, except ``run`` while blocks are short."""

    running: list[Work] = field(default_factory=list)
    seats_left: int = 9
    tokens_left: int = 99
    now: float = 0.0
    short: int = 0
    expecting: tuple[int, ...] = ()
    """Ids of those whose prefix another is computing."""
    calls: list[tuple[str, int]] = field(default_factory=list)

    def start(self, sequence: Work, num_tokens: int | None = None) -> Grant:
        if not self.seats_left:
            return Grant(reason="seats")
        if sequence.id in self.expecting:
            return Grant(reason="prefix")
        self.calls.append(("start", sequence.id))
        self.seats_left -= 1
        return Grant(num_tokens=1)

    def run(self, sequence: Work, num_tokens: int | None = None) -> Grant:
        self.calls.append(("run", sequence.id))
        return Grant(reason="blocks", missing=self.short) if self.short else Grant(num_tokens=1)

    def preempt(self, victim: Work, how: str = "recompute") -> bool:
        self.calls.append(("preempt", victim.id))
        self.short -= 1
        return True


def make(**options: float) -> Scheduler:
    return enginebay_scheduler(Options(**options), SchedulerContext(limits=LIMITS))


def test_the_least_work_starts_first() -> None:
    """Ties go to who came earlier."""
    scheduler, build = make(), Builder()
    for work in (Work(1, 30), Work(2, 10, arrival=2.0), Work(3, 10, arrival=1.0), Work(4, 20)):
        scheduler.add(work)
    scheduler.plan(build)
    assert build.calls == [("start", 3), ("start", 2), ("start", 4), ("start", 1)]
    assert scheduler.num_waiting() == 0


def test_patience_ends_the_waiting_of_long_requests() -> None:
    """After ten seconds the long one goes first, once."""
    scheduler, build = make(patience=10.0), Builder(now=11.0, seats_left=2)
    for work in (Work(1, 60), Work(2, 10, arrival=5.0), Work(3, 5, arrival=6.0)):
        scheduler.add(work)
    scheduler.plan(build)
    assert build.calls == [("start", 1), ("start", 3)]


def test_the_longest_gives_way_when_memory_runs_out() -> None:
    """The shortest runs, with the blocks of the longest; nobody new is started in their place."""
    scheduler = make()
    build = Builder(running=[Work(1, 40), Work(2, 5), Work(3, 9)], short=1)
    scheduler.plan(build)
    assert build.calls == [("run", 2), ("preempt", 1), ("run", 2), ("run", 3)]


def test_removed_sequences_are_skipped() -> None:
    """Ended while waiting: never started, and the orders stay sound."""
    scheduler, build = make(), Builder()
    for work in (Work(1, 1), Work(2, 2), Work(3, 3)):
        scheduler.add(work)
    scheduler.remove(1)
    scheduler.remove(99)
    scheduler.check_integrity()
    scheduler.plan(build)
    assert build.calls == [("start", 2), ("start", 3)]


def test_who_waits_for_a_prefix_is_passed_over() -> None:
    """It alone: the next starts, and it stays in the queue, however many steps that takes."""
    scheduler, build = make(), Builder(expecting=(1,))
    for work in (Work(1, 1), Work(2, 2)):
        scheduler.add(work)
    for _ in range(200):
        scheduler.plan(build)
        scheduler.check_integrity()
    assert build.calls == [("start", 2)]
    assert scheduler.num_waiting() == 1
    scheduler.plan(Builder())
    assert scheduler.num_waiting() == 0


@pytest.mark.parametrize("check", SCHEDULER_CHECKS, ids=lambda check: check.id)
def test_the_contract_is_kept(check: Check) -> None:
    """Conformance judges it as it judges the schedulers that ship."""
    check.call(lambda limits: enginebay_scheduler(Options(), SchedulerContext(limits=limits)))


def test_a_wrong_option_stops_the_start() -> None:
    """The message names plugin, option and value."""
    with pytest.raises(StackError, match=r"shortest-first: patience is -1\.0"):
        make(patience=-1.0)


def test_it_is_found_by_its_name() -> None:
    """The entry point of the installed distribution leads here, and the contract fits."""
    registry = Registry()
    registry.load(FAMILIES["scheduler"], "shortest-first")
    (found, _) = registry.loaded["scheduler", "shortest-first"]
    assert found.distribution == "enginebay-shortest-first"


def test_answers_do_not_depend_on_the_scheduler(tmp_path: Path) -> None:
    """A whole engine with a tiny model: another order of work, the same tokens.

    Five blocks for four requests that grow to three each: some must give way.
    """
    model = str(write_tiny(tmp_path / "model"))
    prompts = [[5] * length for length in (15, 3, 16, 8)]
    sampling = SamplingParams(max_tokens=24, seed=7, ignore_eos=True)
    answers = []
    for scheduler in ("chunked", "shortest-first"):
        changes = {**EXACT, "scheduler": scheduler, "engine.num_blocks": 5}
        with LLM(model, stack="reference", overrides=changes) as llm:
            outputs = llm.generate(prompts, sampling)
        assert any(output.usage.num_preemptions for output in outputs)
        answers.append([output.outputs[0].token_ids for output in outputs])
    assert answers[0] == answers[1]
