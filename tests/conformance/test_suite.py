"""The suite: what it picks, how it reports, and that a wrong plugin fails by name."""

import json

import pytest

from enginebay.config import load_stack
from enginebay.conformance.check import CheckList, Skip, require
from enginebay.conformance.report import Report
from enginebay.conformance.suite import Task, entry_of, judge, plan_plugin, plan_stack, run
from enginebay.errors import EnginebayError

CHECKS = CheckList()


@CHECKS.add("toy/even")
def even(given):
    """The number is even."""
    require(given % 2 == 0, "toy/even", f"{given} is odd")
    return f"half is {given // 2}"


@CHECKS.add("toy/small")
def small(given):
    """The number is small."""
    if given < 0:
        reason = "negative numbers have no size here"
        raise Skip(reason)
    return [0] * (10 - given) and None


@CHECKS.add("toy/crash")
def crash(given):
    """Something breaks."""
    return 1 // given and None


def outcomes(given):
    report = judge([Task(check, "toy", lambda: given) for check in CHECKS])
    return report, {result.check: (result.outcome, result.message) for result in report.results}


def test_outcomes():
    """Passed with what was measured, failed with the clause, skipped with the reason."""
    _, found = outcomes(4)
    assert found["toy/even"] == ("passed", "half is 2")
    report, found = outcomes(-3)
    assert found["toy/even"] == ("failed", "toy/even: -3 is odd")
    assert found["toy/small"] == ("skipped", "negative numbers have no size here")
    _, found = outcomes(0)
    assert found["toy/crash"][0] == "failed"
    assert "ZeroDivisionError" in found["toy/crash"][1]
    assert report.summary() == "1 passed, 1 failed, 1 skipped"
    facts = json.loads(report.json())
    assert (facts["failed"], facts["results"][0]["check"]) == (1, "toy/even")


def test_a_stack_is_judged_in_every_slot_with_checks():
    """Scheduler, allocator, kernels, text, and the stack as a whole."""
    checks = {task.check.id for task in plan_stack(load_stack("cpu"))}
    for family in (
        "scheduler",
        "allocator",
        "kernel",
        "detokenizer",
        "frontend",
        "client",
        "parity",
    ):
        assert any(check.startswith(f"{family}/") for check in checks), family
    assert "invariance/surroundings" in checks


def test_a_plugin_is_named_by_family_and_name():
    """Anything else is told with what would be right."""
    tasks = plan_plugin(entry_of("scheduler:chunked"))
    assert all(task.subject.startswith("chunked (enginebay ") for task in tasks)
    for wrong, told in [
        ("chunked", "is not FAMILY:NAME"),
        ("schedule:chunked", "is not FAMILY:NAME"),
        ("quant:none", "no checks for the quant family yet"),
        ("scheduler:chunkd", "did you mean 'chunked'"),
    ]:
        with pytest.raises(EnginebayError, match=told):
            plan_plugin(entry_of(wrong))


def test_a_wrong_plugin_fails_by_name(monkeypatch):
    """The shipped scheduler with one mistake: the suite says which clause it broke."""
    from enginebay.plugins.schedulers.chunked import Chunked

    monkeypatch.setattr(Chunked, "remove", lambda self, sequence_id: None)
    report = judge(plan_plugin(entry_of("scheduler:chunked")))
    assert "scheduler/remove-waiting" in {result.check for result in report.failed}


def test_a_client_is_judged_as_it_is_and_through_bytes(capsys):
    """Every clause twice; what the engine says while a check breaks it is not shown."""
    tasks = plan_plugin(entry_of("client:inproc"))
    assert len({(task.check.id, task.subject) for task in tasks}) == len(tasks)
    chosen = [task for task in tasks if task.check.id in ("client/failure", "client/order")]
    report = judge(chosen)
    assert report.summary() == "4 passed, 0 failed, 0 skipped"
    assert "through bytes" in report.results[-1].subject
    assert capsys.readouterr().out == ""


def test_reports_differ_in_nothing_but_times():
    """Two runs of the same checks say the same."""
    tasks = plan_plugin(entry_of("allocator:paged")) + plan_plugin(entry_of("scheduler:chunked"))
    quick = [task for task in tasks if task.check.id not in ("scheduler/cost",)][:16]
    first, second = (
        [(result.check, result.subject, result.outcome, result.message) for result in run(quick)]
        for _ in range(2)
    )
    assert first == second


def test_the_stack_checks_pass_on_a_tiny_model(tmp_path):
    """Parity with the reference kernels and transformers, and the sampler chain."""
    from enginebay.conformance.tiny import write_tiny

    model = str(write_tiny(tmp_path / "tiny"))
    stack = load_stack("cpu", {"engine.model": model})
    tasks = [
        task
        for task in plan_stack(stack, num_positions=48)
        if task.check.id.startswith(("parity", "sampler"))
    ]
    report = judge(tasks)
    assert isinstance(report, Report)
    assert not report.failed, report.failed
    assert report.count("passed") == 3
    assert "top-1 agreement 1.0000" in report.results[0].message
