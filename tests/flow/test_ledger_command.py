"""``enginebay ledger`` as a user types it."""

import json
from pathlib import Path

import pytest

from enginebay.commands import main

SHAPE = ("--parameters", "7e9", "--layers", 32, "--kv-heads", 8, "--head-dim", 128)
WORKED = (
    *SHAPE, "--dtype", "bfloat16", "--tokens", 4096, "--requests", 16, "--runtime", "3GiB",
    "--reserve", "4GiB", "--device-memory", "40GiB",
)  # fmt: skip


@pytest.fixture
def ledger(capsys):
    """Run the command: (exit status, what it printed)."""

    def run(*words):
        status = main(["ledger", *map(str, words)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def test_the_worked_case(ledger):
    """As a table and as bytes."""
    status, table, _ = ledger(*WORKED)
    assert status == 0
    for figure in ("13.04 GiB", "128 KiB a token", "0.50 GiB", "8.00 GiB", "28.04 GiB  of 40.00"):
        assert figure in table
    told = json.loads(ledger(*WORKED, "--json")[1])
    assert told["total"] == 14 * 10**9 + 15 * 2**30
    assert (told["token_bytes"], told["request_bytes"]) == (131072, 2**29)


def test_a_plan_that_does_not_fit_is_a_failure(ledger):
    """Exit status 1, and by how much."""
    status, table, _ = ledger(*WORKED, "--device-memory", "20GiB")
    assert status == 1
    assert "-8.04 GiB  it does not fit" in table


def test_a_checkpoint_is_planned_from_its_metadata(ledger, tiny, monkeypatch):
    """Weights to the byte without a tensor read, KV logical and physical."""

    def reads(*given):
        pytest.fail("a tensor was read")

    where = "enginebay.plugins.formats.safetensors.SafetensorsCheckpoint.load"
    monkeypatch.setattr(where, reads)
    words = (
        "--stack",
        "cpu",
        "--model",
        tiny,
        "--tokens",
        17,
        "--requests",
        3,
        "--device-memory",
        "1GiB",
        "--json",
    )
    status, text, _ = ledger(*words)
    told = json.loads(text)
    lines = {line["name"]: line["planned"] for line in told["lines"]}
    assert status == 0
    rotary = 4 * 512 * 16  # float32, of each position
    assert lines["weights"] == sum(part["num_bytes"] for part in told["stored"]) + rotary
    assert told["token_bytes"] == 2 * 2 * 2 * 16 * 4
    assert lines["kv"] == 3 * 2 * 16 * told["token_bytes"]
    assert told["logical_kv"] == 3 * 17 * told["token_bytes"]
    others = told["total"] - lines["kv"]
    assert told["fits"] == (2**30 - others) // told["request_bytes"]


def test_a_stack_that_calibrates_is_planned_without(ledger, tiny, monkeypatch):
    """No tensor is read for a plan: int8 codes, a scale a row, and the head's own copy."""

    def reads(*given):
        pytest.fail("a tensor was read")

    where = "enginebay.plugins.formats.safetensors.SafetensorsCheckpoint.load"
    monkeypatch.setattr(where, reads)
    status, text, _ = ledger("--stack", "cpu-w8a8", "--model", tiny, "--json")
    assert status == 0
    schemes = {part["scheme"] for line in json.loads(text)["lines"] for part in line["parts"]}
    assert "w8a8" in schemes


def test_another_dtype_is_planned_though_no_kernel_runs_it_here(ledger, tiny):
    """Half the bytes, and a note that says why they were not rehearsed."""
    words = ("--stack", "cpu", "--model", tiny, "--json")
    full = json.loads(ledger(*words)[1])
    half = json.loads(ledger(*words, "--dtype", "bfloat16")[1])
    weights = [told["lines"][0] for told in (full, half)]
    assert weights[1]["planned"] * 2 == weights[0]["planned"] - 4 * 512 * 16  # rotary table
    assert "no kernel for" in weights[1]["note"]
    assert half["token_bytes"] * 2 == full["token_bytes"]


def test_lines_without_numbers_are_not_asked(ledger):
    """No figure, and which option gives one; the others stand."""
    lines = {line.split()[0]: line for line in ledger("--parameters", "7e9")[1].splitlines()}
    wanted = "not asked: give --layers, --kv-heads, --head-dim, --tokens, --requests"
    assert lines["kv"].endswith(f"-  {wanted}")
    assert "13.04 GiB" in lines["weights"]
    assert lines["runtime"].endswith("-  not asked: give --runtime")
    assert "not asked" not in ledger(*WORKED)[1].partition("swap")[0]


def test_a_request_longer_than_the_model_is_told(ledger, tiny):
    """Beside the plan of its KV; by the stack's own bound where that is lower."""
    most = json.loads((Path(tiny) / "config.json").read_text())["max_position_embeddings"]
    for tokens, words, told in (
        (most, (), ""),
        (most + 1, (), f"{most + 1:,} tokens are longer than the model's {most:,}"),
        (17, ("--set", "engine.max_model_len=16"), "longer than engine.max_model_len = 16"),
    ):
        table = ledger("--model", tiny, "--tokens", tokens, "--requests", 1, *words)[1]
        assert told in table
        assert ("longer than" in table) == bool(told)


def test_block_sizes(ledger, tmp_path):
    """The worked example, from the command line and from a file."""
    path = tmp_path / "lengths.txt"
    path.write_text("17\n33\n65\n")
    for lengths in ("17,33,65", path):
        told = json.loads(ledger("--blocks", "4,16", "--lengths", lengths, "--json")[1])
        figures = [(way["block_size"], way["slots"], way["entries"]) for way in told["ways"]]
        assert figures == [(4, 124, 31), (16, 160, 10), (65, 195, 3)]
    table = ledger("--blocks", "4,16", "--lengths", "17,33,65")[1]
    assert "3 sequences, 115 tokens" in table
    assert "contiguous 65" in table


def test_block_sizes_of_a_trace(ledger, tmp_path):
    """The trace that ships has comments above its JSON lines; those of a CSV are skipped too."""
    trace = Path(__file__).parents[2] / "examples" / "traces" / "three-tenants.jsonl"
    status, text, error = ledger("--blocks", "4,16", "--lengths", trace, "--json")
    assert (status, error) == (0, "")
    rows = [json.loads(line) for line in trace.read_text().splitlines() if line[0] == "{"]
    told = json.loads(text)
    assert told["sequences"] == len(rows)
    assert told["ways"][0]["tokens"] == sum(r["prompt_tokens"] + r["output_tokens"] for r in rows)
    path = tmp_path / "lengths.csv"
    path.write_text("# mine, and only mine\nid,tokens\na,17\n# more\nb,33\nc,many\n")
    assert "row 6: tokens is not" in ledger("--lengths", path)[2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--blocks", "4"], "--blocks needs --lengths"),
        (["--blocks", "x", "--lengths", "3"], "--blocks 'x'"),
        (["--blocks", "0", "--lengths", "3"], "--blocks 0"),
        (["--parameters", "7e9", "--device-memory", "40GB"], "--device-memory: '40GB'"),
    ],
)
def test_wrong_words_are_named(ledger, words, told):
    """One line on standard error."""
    status, _, error = ledger(*words)
    assert status == 1
    assert told in error
