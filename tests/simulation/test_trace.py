"""Traces: files, made-up ones, and what is told of wrong ones."""

import json

import pytest

from enginebay.simulation.synthetic import is_synthetic, make
from enginebay.simulation.trace import Call, TraceError, read, rescaled


def written(path, *lines):
    """A trace file."""
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_json_lines_are_calls(tmp_path):
    """Fields by name, in order of time, the first at 0; remarks and blanks are passed over."""
    second = {"time": 12.5, "prompt_tokens": 9, "output_tokens": 4, "tenant": "b", "n": 2}
    first = {"time": 10, "prompt_tokens": 7, "output_tokens": 3, "deadline": 1.5, "priority": 2}
    path = written(tmp_path / "t.jsonl", "# ours", json.dumps(second), "", json.dumps(first))
    assert read(path) == [
        Call(time=0.0, prompt_tokens=7, output_tokens=3, deadline=1.5, priority=2),
        Call(time=2.5, prompt_tokens=9, output_tokens=4, tenant="b", n=2),
    ]


def test_the_azure_form_is_read(tmp_path):
    """Seven digits of a second, counts of tokens; an answer of none is one token."""
    path = written(
        tmp_path / "azure.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,0",
    )
    calls = read(path)
    assert [(c.prompt_tokens, c.output_tokens) for c in calls] == [(374, 44), (396, 1)]
    assert [c.time for c in calls] == pytest.approx([0.0, 4.314579])


def test_scales_and_limits():
    """Times and lengths are multiplied, and the first calls are kept."""
    calls = [Call(time=n, prompt_tokens=100, output_tokens=1, max_tokens=50) for n in range(4)]
    scaled = rescaled(calls, time=0.5, lengths=0.1, limit=3)
    assert [call.time for call in scaled] == [0, 0.5, 1]
    assert {(c.prompt_tokens, c.output_tokens, c.max_tokens) for c in scaled} == {(10, 1, 5)}
    with pytest.raises(TraceError, match="scale of time is 0"):
        rescaled(calls, time=0)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"time": 0, "prompt_tokens": 5}', r"t.jsonl:1: .*output_tokens"),
        ('{"time": 0, "prompt_tokens": 0, "output_tokens": 5}', "prompt_tokens = 0"),
        ('{"time": 0, "prompt_tokens": 1, "output_tokens": 5, "max_tokens": 4}', "max_tokens = 4"),
        ('{"time": 0, "prompt_tokens": 1, "output_tokens": 5, "colour": 4}', "colour"),
        ("", "holds no calls"),
    ],
)
def test_wrong_lines_are_named(tmp_path, line, told):
    """File, line, and what stands there."""
    with pytest.raises(TraceError, match=told):
        read(written(tmp_path / "t.jsonl", line))


def test_wrong_columns_are_named(tmp_path):
    """What the table has and what it needs."""
    with pytest.raises(TraceError, match="ContextTokens"):
        read(written(tmp_path / "t.csv", "when,what", "1,2"))
    with pytest.raises(TraceError, match="can't be read"):
        read(str(tmp_path / "none.csv"))


def test_a_poisson_trace_has_its_means():
    """Rate, lengths, tenants by their skew, and the same again for the same seed."""
    text = "poisson:rate=50,seconds=100,prompt=200,output=40,tenants=3,skew=4,seed=3"
    calls = make(text)
    assert len(calls) == pytest.approx(5000, rel=0.1)
    assert sum(c.prompt_tokens for c in calls) / len(calls) == pytest.approx(200, rel=0.05)
    assert sum(c.output_tokens for c in calls) / len(calls) == pytest.approx(40, rel=0.05)
    share = sum(c.tenant == "tenant-0" for c in calls) / len(calls)
    assert share == pytest.approx(4 / 6, abs=0.03)
    assert calls == make(text) != make(text.replace("seed=3", "seed=4"))


def test_other_kinds():
    """Equal gaps, and all at once; equal lengths without spread; a shared beginning."""
    steady = make("steady:rate=2,seconds=3,spread=0,prompt=30,prefix=10,prefixes=2")
    assert [call.time for call in steady] == [0, 0.5, 1, 1.5, 2, 2.5]
    assert {(c.prompt_tokens, c.prefix_tokens) for c in steady} == {(30, 10)}
    assert {c.prefix for c in steady} <= {"prefix-0", "prefix-1"}
    assert {call.time for call in make("burst:rate=5,seconds=2")} == {0.0}
    assert is_synthetic("poisson")
    assert not is_synthetic("poisson.jsonl")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("poisson:rat=5", r"unknown key 'rat' \(did you mean 'rate'\?\)"),
        ("poisson:rate=fast", "rate = 'fast' is not a number"),
        ("poisson:rate=0", "rate = 0.0 is below"),
        ("poisson:tenants=0", "tenants = 0 is below 1"),
    ],
)
def test_wrong_parameters_are_named(text, told):
    """The key, the value, and what would be right."""
    with pytest.raises(TraceError, match=told):
        make(text)
