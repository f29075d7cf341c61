"""The check for GPU machines: stages that fail or hang cost the others nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))  # the benchmarks are in no package

from benchmarks.gpu_check import __main__ as check  # noqa: E402
from benchmarks.gpu_check import checkout  # noqa: E402
from benchmarks.gpu_check.attention import Load, contiguous, rates  # noqa: E402
from benchmarks.gpu_check.engine import CPU  # noqa: E402
from benchmarks.gpu_check.logits import compare  # noqa: E402
from benchmarks.gpu_check.stage import Report  # noqa: E402
from benchmarks.gpu_check.stages import STAGES  # noqa: E402
from enginebay.conformance.attention_world import expected, make_prompt, make_spec  # noqa: E402
from enginebay.conformance.tiny import write_tiny  # noqa: E402

TOLD = '{"lines": ["a: 1"], "figures": {"a": {}}, "failed": []}'
FAILED = TOLD.replace("[]", '["b"]')


def run(code, seconds=30.0):
    """A stage that is a line of Python."""
    return check.run([sys.executable, "-c", code], {}, seconds)


def test_all_stages_together_take_less_than_8_minutes():
    """As promised; each has a module."""
    assert sum(stage.seconds for stage in STAGES) <= check.BUDGET < 480
    for stage in STAGES:
        assert (ROOT / "benchmarks" / "gpu_check" / f"{stage.name}.py").exists()


def test_a_stage_that_ends_well_gives_what_it_told_last():
    """Whatever it printed before and after."""
    told = run(f"print('noise'); print('''{TOLD}'''); print('more')")
    assert told["ok"]
    assert told["figures"] == {"a": {}}


def test_a_failed_part_fails_the_stage_and_keeps_the_rest():
    """Without an error of the stage itself."""
    told = run(f"print('''{FAILED}'''); raise SystemExit(1)")
    assert not told["ok"]
    assert (told["lines"], told["failed"], "error" in told) == (["a: 1"], ["b"], False)


def test_a_stage_that_dies_or_hangs_is_told_with_its_output():
    """And what it had told until then is kept."""
    died = run("import os; print('last words', flush=True); os._exit(7)")
    assert (died["ok"], died["error"]) == (False, "exit status 7")
    assert "last words" in died["output"]
    hung = run(f"print('''{TOLD}''', flush=True); import time; time.sleep(60)", 1.0)
    assert hung["error"] == "ended after 1 s"
    assert hung["lines"] == ["a: 1"]
    assert run("", 0.0)["error"] == "no time was left"


def test_a_part_that_raises_stays_its_own(capsys):
    """The others are told, each as soon as it is known."""
    report = Report()
    report.part("good", lambda: ({"x": 1}, "fine"))
    report.part("bad", lambda: 1 / 0)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["failed"] for line in lines] == [[], ["bad"]]
    assert report.figures == {"good": {"x": 1}}
    assert "ZeroDivisionError" in report.lines[1]


def test_a_checkout_stands_in_for_an_installed_package(tmp_path):
    """Python finds the package, its parts and its plugins there, before any other."""
    code = (
        "import enginebay.plugins, enginebay.conformance, sys; from importlib.metadata import *; "
        "print(enginebay.__file__, len(entry_points(group='enginebay.kernels')), "
        "version('enginebay'))"
    )
    folder = checkout.lay_out(tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    where, kernels, version = done.stdout.split()
    project = checkout.project()["project"]
    assert where.startswith(str(folder))
    assert int(kernels) == len(project["entry-points"]["enginebay.kernels"])
    assert version == project["version"]


def test_missing_packages_are_named(monkeypatch):
    """Absent ones and unfit versions; here nothing but what GPUs need can be."""
    assert {name.partition(">")[0] for name in checkout.missing()} <= {"triton", "cupy-cuda13x"}
    facts = {"dependencies": ["numpy>=1", "numpy>=999", "no-such-package"]}
    facts["optional-dependencies"] = {"test": [], "gpu": []}
    monkeypatch.setattr(checkout, "project", lambda: {"project": facts})
    assert checkout.missing() == ["numpy>=999", "no-such-package"]


def test_the_comparison_sees_equal_and_different_models(tmp_path, monkeypatch):
    """A prompt joins the decodes; other weights are noticed."""
    model = str(write_tiny(tmp_path / "a", num_hidden_layers=1))
    facts, _ = compare(model, CPU)
    assert facts == {"difference": 0.0, "compared": 19, "same_tokens": True}
    other = str(write_tiny(tmp_path / "b", seed=1, num_hidden_layers=1))
    monkeypatch.setattr(CPU.__class__, "changes", _other(CPU.changes, other))
    with pytest.raises(ValueError, match="logits differ by"):
        compare(model, CPU)


def _other(changes, second):
    """The second stack that asks gets another model."""
    asked = []

    def chosen(self, model):
        asked.append(model)
        return changes(model if len(asked) == 1 else second)

    return chosen


@pytest.mark.parametrize("rows", [1, 4, 9])
def test_torchs_attention_is_asked_the_same(rows):
    """The last rows of each sequence, grouped heads; as in float64."""
    load = Load(4, 2, 16, 1, 9, rows, "float32")
    spec = make_spec(4, 2, 16)
    prompt = make_prompt(spec, 9, 16, 3)
    prompt.cos_sin[:, :8], prompt.cos_sin[:, 8:] = 1.0, 0.0
    found = contiguous(load, prompt.q[None], prompt.k[None], prompt.v[None])()
    wanted = expected(spec, prompt)[-rows:]
    assert torch.allclose(found[0].transpose(0, 1).flatten(1).double(), wanted, atol=1e-6)


def test_rates_count_what_must_be_done():
    """Bytes of a decode's keys and values; visible scores of a prompt, twice."""
    assert rates(Load(4, 2, 16, 3, 10, 1, "bfloat16"), 0.5) == {"GB/s": 3 * 10 * 2 * 32 * 2 / 0.5}
    assert rates(Load(4, 2, 16, 1, 3, 3), 1.0) == {"G multiply-adds/s": 2 * 6 * 64}
