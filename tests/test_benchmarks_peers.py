"""The comparison with other engines: what is asked, what is counted, who is left out."""

import json
import sys
from contextlib import nullcontext
from io import StringIO
from pathlib import Path

import gguf
import numpy as np
import pytest
from rich.console import Console

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))  # the benchmarks are in no package that is installed

from benchmarks.peers import export, figures, table  # noqa: E402
from benchmarks.peers.__main__ import main  # noqa: E402
from benchmarks.peers.engines import Setup  # noqa: E402
from benchmarks.peers.points import POINTS, Point, prompts, rate  # noqa: E402
from benchmarks.peers.process import Failed, Worker, environment  # noqa: E402
from benchmarks.peers.rounds import Measurement, Run  # noqa: E402
from benchmarks.peers.worker import run  # noqa: E402

LOAD = Point("8+4@2", 8, 4, 2)


class Steady:
    """A worker that answers ``tokens`` tokens in a second."""

    def __init__(self, short=False):
        self.asked, self.closed, self._short = [], False, short

    def run(self, asked, tokens, *, mark):
        """One run."""
        if self._short and tokens > 2:
            raise Failed("4 tokens asked for, [3] came")
        self.asked.append(asked)
        outputs = [[row[0]] * tokens for row in asked]
        return {"outputs": outputs, "seconds": 1.0, "first": [1, 0.5] if mark else None}

    def awake(self):
        """Always."""
        return nullcontext(self)

    def cpu_seconds(self):
        """None that would show."""
        return 0.0

    def close(self):
        """No more."""
        self.closed = True


def measured(engine, point, speed, outputs=((1, 2),), turn=1):
    """A measurement of which only these fields matter."""
    return Measurement(engine, point, turn, speed, 1.0, None, 0.0, [list(row) for row in outputs])


def test_prompts_are_the_same_for_all_engines_and_new_in_each_round():
    """Otherwise a cache, or luck with tokens, would favour somebody."""
    ids = range(17, 49152)
    first = prompts(LOAD, 1, ids, seed=1)
    assert first == prompts(LOAD, 1, ids, seed=1)
    others = [prompts(LOAD, 2, ids, seed=1), prompts(LOAD, 1, ids, seed=2)]
    assert all(first[0] != second[0] for second in others)
    assert [len(row) for row in first] == [8, 8]
    assert first[0] != first[1]
    assert min(min(row) for row in first) >= 17


def test_points_are_those_of_the_comparison():
    """Lengths and concurrency stand in the names."""
    shown = [(p.name, p.prompt, p.tokens, p.concurrency) for p in POINTS]
    assert shown == [
        ("prefill-512", 512, 1, 1),
        ("16+64@1", 16, 64, 1),
        ("16+64@4", 16, 64, 4),
        ("16+64@16", 16, 64, 16),
        ("128+64@16", 128, 64, 16),
        ("2000+64@1", 2000, 65, 1),
    ]


def test_each_kind_of_point_counts_its_own_tokens():
    """Prompts, all generated over the whole, or those after the first over the rest."""
    assert rate(Point("p", 512, 1, counts="prompt"), 2.0, None) == 256
    assert rate(Point("g", 16, 64, 4), 2.0, None) == 128
    decode = Point("d", 2000, 65, counts="decode")
    assert rate(decode, 10.0, (1, 8.0)) == 32
    with pytest.raises(ValueError, match="first token"):
        rate(decode, 10.0, None)


def test_a_round_asks_everyone_the_same_and_counts_no_warm_up():
    """Two rounds give two measurements of each, after prompts that nobody counted."""
    workers = {"a": Steady(), "b": Steady()}
    subject = Run(dict(workers), [LOAD], range(50, 100), seed=3)
    assert list(subject.turns(2, lambda line: None)) == [1, 2]
    assert workers["a"].asked == workers["b"].asked
    assert len(workers["a"].asked) == 2 * 3  # each time a short one first, untimed
    assert [(m.engine, m.turn) for m in subject.measured] == [
        ("b", 1), ("a", 1), ("a", 2), ("b", 2),
    ]  # fmt: skip
    assert {m.rate for m in subject.measured} == {8.0}


def test_an_engine_that_falls_short_is_left_out_by_name():
    """A wrong number of tokens is no result, and the others go on."""
    short = Steady(short=True)
    subject = Run({"a": Steady(), "b": short}, [LOAD], range(50, 100), seed=3)
    list(subject.turns(1, lambda line: None))
    assert subject.left_out == {"b": "8+4@2: 4 tokens asked for, [3] came"}
    assert short.closed
    assert {m.engine for m in subject.measured} == {"a"}


def test_ratios_are_within_a_class_of_weights():
    """An 8-bit stack is held against the best 8-bit peer of each point, not against float32."""
    bits = {"enginebay:q": "8-bit", "x": "8-bit", "y": "8-bit", "z": "float32"}
    facts = {name: {"bits": each} for name, each in bits.items()}
    speeds = {"enginebay:q": (30, 30), "x": (10, 20), "y": (15, 5), "z": (1, 1)}
    rows = [measured(n, p, s) for n, by in speeds.items() for p, s in zip("pq", by, strict=True)]
    found = {each["against"]: each for each in figures.ratios(figures.medians(rows), facts)}
    assert set(found) == {"x", "y", "best"}
    assert found["best"]["points"] == {"p": 2.0, "q": 1.5}
    assert found["best"]["whom"] == {"p": "y", "q": "x"}


def test_a_median_is_of_the_rounds():
    """One slow round does not move it."""
    found = figures.medians([measured("a", "p", speed) for speed in (10, 1, 12)])
    assert found["a"]["p"]["median"] == 10
    assert (found["a"]["p"]["low"], found["a"]["p"]["high"]) == (1, 12)


def test_agreement_ends_at_the_first_difference():
    """What follows another token is another text."""
    rows = [
        measured("enginebay:cpu", "p", 1, [(1, 2, 3, 4), (5, 6, 7, 8)]),
        measured("x", "p", 1, [(1, 9, 3, 4), (5, 6, 7, 8)]),
    ]
    assert figures.agreement(rows, "enginebay:cpu") == {"enginebay:cpu": 1.0, "x": 5 / 8}
    assert figures.agreement(rows, "") == {}


def test_a_run_is_timed_with_its_first_token():
    """The mark of the first arrival is kept, not of later ones."""

    class Two:
        def generate(self, asked, tokens, mark):
            for count in range(1, tokens + 1):
                mark(count)
            return [np.arange(tokens)]

    answer = run(Two(), [[1]], 3, mark=True)
    assert answer["outputs"] == [[0, 1, 2]]
    assert answer["first"][0] == 1
    assert 0 <= answer["first"][1] <= answer["seconds"]
    json.dumps(answer)


def test_a_peer_that_is_not_installed_says_so(tmp_path):
    """It fails in its own process, and the reason comes back."""
    setup = Setup("no_such_engine", "", "", str(tmp_path), 1, 16, 1)
    with pytest.raises(Failed, match="No module named"):
        Worker(sys.executable, setup, tmp_path / "log", patience=60.0)


ECHO = """#!{python}
import json, sys
sys.stdin.readline()
print(json.dumps({{"facts": {{"version": "1"}}}}), flush=True)
for line in sys.stdin:
    rows = [[7] * ({short} or json.loads(line)["tokens"])]
    print(json.dumps({{"outputs": rows, "seconds": 1.0, "first": None}}), flush=True)
"""


def echo(folder, short=0):
    """A worker whose Python is a script that answers at once."""
    script = folder / "python"
    script.write_text(ECHO.format(python=sys.executable, short=short))
    script.chmod(0o755)
    setup = Setup("any", "", "", str(folder), 1, 16, 1)
    return Worker(str(script), setup, folder / "log", patience=60.0)


def state(worker):
    """The system's letter for what a process does; T: stopped."""
    return Path(f"/proc/{worker.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_an_engine_stands_still_unless_it_is_asked(tmp_path):
    """Threads that spin in one engine would slow the others."""
    worker = echo(tmp_path)
    try:
        assert state(worker) == "T"
        with worker.awake():
            assert worker.run([[1]], 3, mark=False)["outputs"] == [[7, 7, 7]]
            assert state(worker) != "T"
        assert state(worker) == "T"
    finally:
        worker.close()


def test_too_few_tokens_are_a_failure(tmp_path):
    """An engine that stopped early would look fast."""
    worker = echo(tmp_path, short=2)
    try:
        with worker.awake(), pytest.raises(Failed, match=r"3 tokens asked for, \[2\] came"):
            worker.run([[1]], 3, mark=False)
    finally:
        worker.close()


def test_thread_settings_of_the_caller_do_not_reach_an_engine(monkeypatch):
    """Each gets the number of threads, and waits as it does by default."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    given = environment(2)
    assert "OMP_WAIT_POLICY" not in given
    assert given["OMP_NUM_THREADS"] == "2"


def test_a_gguf_file_is_rewritten_with_its_values_and_metadata(tmp_path):
    """Matrices become 8-bit blocks, vectors float32, and every entry stays."""
    source, target = tmp_path / "f32.gguf", tmp_path / "q8.gguf"
    matrix = np.random.default_rng(1).normal(size=(4, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_uint32("llama.block_count", 3)
    writer.add_tensor("token_embd.weight", matrix)
    writer.add_tensor("output_norm.weight", matrix[0])
    for step in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
        getattr(writer, f"write_{step}")()
    writer.close()
    export.write_gguf(source, target, "q8_0")
    reader = gguf.GGUFReader(target)
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert reader.fields["llama.block_count"].contents() == 3
    assert found["token_embd.weight"].tensor_type.name == "Q8_0"
    back = gguf.quants.dequantize(found["token_embd.weight"].data, gguf.GGMLQuantizationType.Q8_0)
    assert np.abs(back - matrix).max() <= np.abs(matrix).max() / 254 * 1.01
    assert np.array_equal(found["output_norm.weight"].data, matrix[0])


def test_the_table_tells_who_was_left_out_and_what_disturbed():
    """Figures from a busy machine don't pass for quiet ones."""
    by = {"median": 12.5, "others": 0.7}
    report = {
        "machine": {
            "cpu": "a cpu", "cores": 2, "features": ["avx2"], "memory": "1 kB",
            "system": "s", "date": "d", "load_average": 0.5,
        },
        "model": "m", "way": "in process", "threads": 2, "rounds": 5, "rounds_done": 5, "seed": 1,
        "points": [{"name": "p"}],
        "engines": {"enginebay:cpu": dict.fromkeys(("version", "weights", "kv", "threads"), "v")},
        "agreement": {"enginebay:cpu": 1.0},
        "medians": {"enginebay:cpu": {"p": by}},
        "ratios": [],
        "left_out": {"vllm": "not [installed]"},
    }  # fmt: skip
    console = Console(file=StringIO(), width=150)
    table.show(report, console)
    shown = console.file.getvalue()
    assert "12.5" in shown
    assert "NOT QUIET: up to 0.70 cores" in shown
    assert "left out: vllm: not [installed]" in shown


@pytest.mark.parametrize(
    "wrong", [["--engines", "nobody"], ["--points", "1+1"], ["--python", "nobody=/bin/python"]]
)
def test_a_wrong_name_is_told_what_there_is(wrong, capsys):
    """Before any model is looked for."""
    with pytest.raises(SystemExit):
        main(wrong)
    assert "is not one of" in capsys.readouterr().err
