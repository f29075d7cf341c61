"""``enginebay simulate`` as a user types it."""

import json
from pathlib import Path

import pytest

from enginebay.commands import main
from enginebay.conformance.mutants.schedulers import SCHEDULER_MUTANTS
from enginebay.simulation import soak_command
from enginebay.simulation.parts import Parts
from enginebay.simulation.soak import Found, told
from enginebay.simulation.soak_world import draw

ROOT = Path(__file__).parents[2]
TRACE = "steady:rate=20,seconds=1,prompt=20,output=5,tenants=2"


def simulate(*words):
    """Exit status of the command."""
    return main(["simulate", *map(str, words)])


def test_policies_are_compared(capsys, tmp_path):
    """A column each; figures as JSON, a page as HTML; trace, cost and limits are stated."""
    figures, html = tmp_path / "f.json", tmp_path / "p.html"
    words = ("--schedulers", "chunked,static", "--allocators", "paged,contiguous")
    bounds = ("--blocks", 64, "--seats", 3, "--cost", "step=0.01")
    out = ("--json", figures, "--html", html)
    assert simulate(*words, *bounds, "--trace", TRACE, *out) == 0
    told = capsys.readouterr().out
    assert "20 requests" in told
    assert "0.01 s a step" in told
    assert "64 blocks of 16 tokens" in told
    assert "3 seats" in told
    names = [run["name"] for run in json.loads(figures.read_text())["runs"]]
    assert names == [f"{s}/{a}" for s in ("chunked", "static") for a in ("paged", "contiguous")]
    assert [run["done"] for run in json.loads(figures.read_text())["runs"]] == [20] * 4
    assert "chunked/paged" in html.read_text()


def test_stacks_and_settings(capsys, tmp_path):
    """Stack files beside each other, changed by key; no model is loaded."""
    own = tmp_path / "mine.toml"
    own.write_text('extends = "cpu"\nscheduler = "fcfs"\n[engine]\nblock_size = 8\n')
    words = ("--stack", "cpu", "--stack", own, "--set", "engine.max_sequences=2")
    assert simulate(*words, "--trace", TRACE) == 0
    told = capsys.readouterr().out
    assert "blocks of 8 tokens" in told
    assert "2 seats" in told
    assert "mine" in told.splitlines()[6]


def test_the_shipped_trace_runs(capsys):
    """The example beside the documentation."""
    trace = ROOT / "examples" / "traces" / "three-tenants.jsonl"
    assert simulate("--trace", trace, "--limit", 5) == 0
    assert "5 requests" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--trace", "none.jsonl"), "can't be read"),
        (("--trace", "poison:rate=12"), "did you mean 'poisson'?); those are poisson:, steady:"),
        (("--trace", "poisson:rat=1"), "did you mean 'rate'"),
        (("--schedulers", "chunkd"), "did you mean 'chunked'"),
        (("--blocks", 0), "num_blocks = 0: must be 1 or more"),
        (("--cost", "step"), "not a number"),
        (("--replay", "none.json"), "can't be read"),
        (("--replay", "none.json", "--seed", 4), "--seed does nothing with --replay"),
        (("--seed", 4), "--seed does nothing without --soak; a made-up load takes it as --trace"),
        (("--steps", 9), "--steps does nothing without --soak"),
        (("--soak", "--trace", "poisson"), "--trace does nothing with --soak"),
        (("--soak", "--blocks", 9), "--blocks does nothing with --soak"),
        (("--soak", "--steps", 0), "--steps 0: a soak takes 1 step or more"),
        (("--limit", -3), "the limit is -3 calls"),
    ],
)
def test_mistakes_are_told_in_one_line(capsys, words, told):
    """What, where, and what would be right; status 1."""
    assert simulate(*words) == 1
    error = capsys.readouterr().err
    assert told in error
    assert error.startswith("enginebay: ")


def test_a_soak_ends_with_a_summary(capsys):
    """How many steps over which policies, and what was met."""
    words = ("--schedulers", "chunked", "--allocators", "paged,prefix-hash")
    assert simulate("--soak", "--steps", 400, "--seed", 3, *words) == 0
    told = capsys.readouterr().out
    assert "seeds from 3 on" in told
    assert "no rule was broken" in told
    assert "scheduler: chunked" in told


def test_what_a_soak_finds_can_be_replayed(capsys, tmp_path, monkeypatch):
    """The seed, the shortest trace, and the command that shows it again: while the fault
    is there it is found, and once it is mended it is gone."""
    faulty = next(m.make for m in SCHEDULER_MUTANTS if m.fault == "waits for a batch")
    parts = Parts(schedulers=["chunked"], allocators=["paged"])
    parts.made_schedulers["chunked"] = lambda limits, options: faulty(limits)
    keep = tmp_path / "kept.json"
    with monkeypatch.context() as patch:
        patch.setattr(soak_command, "shipped", lambda: parts)
        words = ("--schedulers", "chunked", "--allocators", "paged")
        assert simulate("--soak", "--steps", 400, "--keep", keep, *words) == 1
        told = capsys.readouterr().out
        assert f"--soak {' '.join(words)} --seed " in told
        assert ": soak/work-conserving: nothing was planned" in told
        assert f"simulate --replay {keep}" in told
        assert simulate("--replay", keep) == 1
        told = capsys.readouterr().out
        assert "soak/work-conserving" in told
        assert "--seed" not in told
    assert simulate("--replay", keep) == 0
    assert "every rule holds" in capsys.readouterr().out


def test_a_long_trace_is_told_in_short():
    """Its first requests, where the others are, and last the rule that was broken."""
    world = draw(11, Parts(schedulers=["chunked"], allocators=["paged"]))
    found = Found(11, "soak/queue", "soak/queue: before", world, world, "soak/queue: after")
    lines = told(found, "kept.json").splitlines()
    assert sum(line.startswith("  request ") for line in lines) == 5
    assert lines[-2] == f"  and {len(world.visits) - 5} more in kept.json"
    assert lines[-1] == "soak/queue: after"


@pytest.mark.parametrize("words", [("--html",), ("--json",), ("--soak", "--keep")])
def test_what_can_not_be_written_is_told_before_the_runs(capsys, tmp_path, words):
    """A folder that is not there, or a folder instead of a file; nothing ran."""
    for path, reason in ((tmp_path / "no" / "x", "there is no folder"), (tmp_path, "is a folder")):
        assert simulate(*words, path) == 1
        printed = capsys.readouterr()
        assert reason in printed.err
        assert printed.out == ""
