"""The command line as a user types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def enginebay(*words, path=None, stdin=None):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if path is not None:
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{path}{os.pathsep}{before}" if before else str(path)
    return subprocess.run(
        [sys.executable, "-m", "enginebay", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        input=stdin,
        timeout=300,
    )


def test_help_names_every_command():
    """The top level lists the commands; a command lists its options."""
    done = enginebay("--help")
    assert done.returncode == 0
    for command in ("run", "chat", "serve", "plugins", "explain", "conform"):
        assert command in done.stdout
    assert "--max-tokens" in enginebay("run", "--help").stdout
    assert enginebay("--version").stdout.startswith("enginebay ")
    assert enginebay().returncode == 2


def test_run_answers_and_repeats_itself(tiny):
    """Greedy by default: twice the same answer, on standard output alone."""
    words = ("run", "Hello", "--model", tiny, "--max-tokens", "6", "--stats")
    first, again = enginebay(*words), enginebay(*words)
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout != "\n"
    assert "tokens/s" in first.stderr
    seeded = enginebay(*words, "--temperature", "1", "--seed", "3", "--raw")
    assert seeded.stdout != first.stdout


def test_chat_keeps_a_conversation(tiny):
    """Lines in, answers out; /new, /exit and an unknown slash word are understood."""
    lines = "Hello\nAnd again\n/what\n/new\nHello\n/exit\n"
    done = enginebay("chat", "--model", tiny, "--max-tokens", "4", stdin=lines)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.split("> ")[1:]
    assert answers[0] == answers[4]  # after /new the first question gets the first answer
    assert "/new starts over" in done.stderr


def test_plugins_are_listed_with_their_origin():
    """Family, name, distribution, version, contract, active; as JSON too."""
    rows = json.loads(enginebay("plugins", "--json", "--family", "scheduler").stdout)
    assert {
        "family": "scheduler",
        "name": "chunked",
        "contract": "1.0",
        "active": True,
    }.items() <= rows[0].items()
    text = enginebay("plugins").stdout
    assert "chunked" in text
    assert "gumbel" in text


def test_explain_tells_kernels_and_why_others_declined(tiny):
    """The deterministic stack shows the fast linear declining for want of invariance."""
    words = ("--model", tiny, "--set", 'kernels=["reference"]')
    done = enginebay("explain", "deterministic", *words, "--json")
    facts = json.loads(done.stdout)
    assert facts["row_invariant"] is True
    linear = next(kernel for kernel in facts["kernels"] if kernel["op"] == "linear")
    assert linear["row_invariant"]
    assert any("not row-invariant" in reason for reason in linear["declined"])
    assert "the whole stack row-invariant: no" in enginebay("explain", "cpu", *words).stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--set", "schedular=chunked"), "did you mean 'scheduler'"),
        (("--set", "scheduler=chunkd"), "did you mean 'chunked'"),
        (("--set", "engine.block_size=many"), "Expected `int`"),
        (("--set", "nonsense"), "is not KEY=VALUE"),
        (("--stack", "gpuu"), "no stack 'gpuu'"),
        (("--model", "/no/such/folder"), "/no/such/folder"),
        (("--set", "options.scheduler.chunked.max_chunck=3"), "did you mean 'max_chunk'"),
    ],
)
def test_a_mistake_stops_the_start_with_one_line(words, told):
    """Exit status 1, the message on standard error, no traceback."""
    done = enginebay("run", "Hello", "--offline", *words)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The example package, installed by pip into a folder of its own."""
    target = tmp_path_factory.mktemp("site")
    example = ROOT / "examples" / "enginebay-shortest-first"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(example)], check=True)
    return target


def test_a_strangers_scheduler_is_found_chosen_and_serves(installed, tiny, tmp_path):
    """A separate installed package, selected in a stack file by its entry-point name."""
    stack = tmp_path / "mine.toml"
    stack.write_text('extends = "cpu"\nscheduler = "shortest-first"\n')
    words = ("run", "Hello", "--model", tiny, "--max-tokens", "5")
    own = enginebay(*words, "--stack", "cpu")
    theirs = enginebay(*words, "--stack", stack, path=installed)
    assert theirs.returncode == 0, theirs.stderr
    assert theirs.stdout == own.stdout
    rows = json.loads(enginebay("plugins", "--json", "--stack", stack, path=installed).stdout)
    mine = next(row for row in rows if row["name"] == "shortest-first")
    assert (mine["active"], mine["distribution"]) == (True, "enginebay-shortest-first")
    missing = enginebay(*words, "--stack", stack)
    assert missing.returncode == 1
    assert "no scheduler plugin is called 'shortest-first'" in missing.stderr


def test_plugins_import_reports_a_broken_one_and_goes_on(tmp_path):
    """Each plugin loads in a process of its own: one that exits harms nobody (case 73)."""
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[enginebay.drafters]\nbroken = broken_plugin\n")
    (tmp_path / "broken_plugin.py").write_text("raise SystemExit('no thanks')\n")
    done = enginebay("plugins", "--import", "--family", "drafter", "--json", path=tmp_path)
    (row,) = json.loads(done.stdout)
    assert done.returncode == 1
    assert "broken 1.0 does not import: SystemExit: no thanks" in row["problem"]
