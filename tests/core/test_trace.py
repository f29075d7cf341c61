"""Traces: timelines as Perfetto reads them, checked against the format's own rules."""

import json

import pytest

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of
from enginebay.plugins.schedulers.chunked import Chunked, Options
from enginebay.timeline import Timeline
from enginebay.trace import chrome_trace
from enginebay.trace_rows import rows_of

REQUIRED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "i": {"name", "cat", "ph", "ts", "s", "pid", "tid"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "M": {"name", "ph", "pid", "args"},
}
"""Keys of the Trace Event Format by phase."""


def require_valid(trace):
    """Every event has its keys, names its thread, and spans of a thread don't overlap."""
    events = json.loads(json.dumps(trace, allow_nan=False))["traceEvents"]
    named = {e["tid"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    free = {}
    for event in events:
        assert REQUIRED[event["ph"]] <= event.keys(), event
        assert event["ts"] >= 0
        if event["ph"] in "Xi":
            assert event["tid"] in named
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= free.get(event["tid"], 0.0) - 0.002
            free[event["tid"]] = event["ts"] + event["dur"]
    return events


def played(depth=1, **bounds):
    """A run with preemptions, and its trace."""
    harness = Harness(
        lambda given: Chunked(Options(preemption="swap"), given),
        limits_of(**{"num_blocks": 16, "max_model_len": 60, "num_swap_blocks": 64, **bounds}),
        depth=depth,
    )
    for number in range(6):
        harness.submit(request_of(f"r{number}", num_prompt=6, max_tokens=40, n=1 + number % 2))
    harness.finish()
    timeline = harness.intake.timeline
    return harness, {name: timeline.of(name) for name in harness.answers.of}


@pytest.mark.parametrize("depth", [1, 2])
def test_a_run_becomes_a_valid_trace(depth):
    """Rows, spans, instants and counters, with every step and every token in it."""
    harness, timelines = played(depth)
    events = require_valid(chrome_trace(timelines))
    threads = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert len(threads) == 9
    assert {"r0", "r1 #0", "r1 #1"} <= set(threads)
    steps = [e for e in events if e["ph"] == "X" and e["cat"] in ("prefill", "decode")]
    marked = [e for name in timelines for e in timelines[name] if e["what"] == "scheduled"]
    assert len(steps) == sum(event["marks"] for event in marked)
    ready = [e["args"]["count"] for e in events if e["ph"] == "i" and e["name"] == "ready"]
    assert sum(ready) == sum(
        len(tokens) for answer in harness.answers.of.values() for tokens in answer.tokens.values()
    )
    assert [e for e in events if e["ph"] == "X" and e["name"] == "preempted: swap"]
    assert [e for e in events if e["ph"] == "X" and e["cat"] == "waiting"]


def test_counters_end_where_they_began():
    """Running and waiting come back to nothing, and never fall below."""
    _, timelines = played()
    counts = [e["args"] for e in chrome_trace(timelines)["traceEvents"] if e["ph"] == "C"]
    assert counts[-1] == {"running": 0, "waiting": 0}
    assert all(min(count.values()) >= 0 for count in counts)
    assert max(count["running"] for count in counts) > 1


def story():
    """One request, written by hand."""
    timeline = Timeline(4)
    timeline.mark("r", "accepted", 1.0, tenant="t")
    timeline.mark("r", "waiting", 1.25, reason="seats", index=0)
    timeline.mark("r", "started", 2.0, index=0)
    timeline.scheduled(1, 2.0, [("r", 0, 8)])
    timeline.step_ended(1, 2.5)
    timeline.mark("r", "first_token", 2.5, index=0)
    timeline.tokens("token_ready", "r", 0, 2.5, 1)
    timeline.scheduled(2, 2.75, [("r", 0, 1)])
    timeline.step_ended(2, 3.0)
    timeline.mark("r", "preempted", 3.25, index=0, by="s", how="swap", reason="blocks")
    timeline.mark("r", "waiting", 3.5, reason="blocks", index=0)
    timeline.mark("r", "started", 4.0, index=0)
    timeline.scheduled(5, 4.0, [("r", 0, 1)])
    timeline.step_ended(5, 4.5)
    timeline.mark("r", "finished", 4.5, index=0, reason="length")
    timeline.mark("r", "released", 4.5)
    return timeline


def test_what_a_choice_did_is_told_span_by_span():
    """Queued, waiting, prefill, decode, preempted, waiting again, decode: with times."""
    (row,) = rows_of("r", story().of("r"))
    assert [(span.kind, span.label, span.begin, span.end) for span in row.spans] == [
        ("waiting", "queued", 1.0, 1.25),
        ("waiting", "waiting: seats", 1.25, 2.0),
        ("prefill", "prefill", 2.0, 2.5),
        ("decode", "decode", 2.75, 3.0),
        ("preempted", "preempted: swap", 3.25, 3.5),
        ("preempted", "preempted: blocks", 3.5, 4.0),
        ("decode", "decode", 4.0, 4.5),
    ]
    assert row.spans[4].facts == {"by": "s", "how": "swap", "reason": "blocks"}
    assert row.spans[2].facts == {"step": 1, "num_tokens": 8}
    assert row.changes == [(1.0, 0, 1), (2.0, 1, -1), (3.25, -1, 1), (4.0, 1, -1), (4.5, -1, 0)]


def test_microseconds_and_names():
    """``ts`` and ``dur`` are microseconds; the process and the thread have names."""
    events = require_valid(chrome_trace({"r": story().of("r")}, name="mine"))
    assert events[0]["args"] == {"name": "mine"}
    (prefill,) = [e for e in events if e["name"] == "prefill"]
    assert (prefill["ts"], prefill["dur"]) == (2_000_000, 500_000)


def test_steps_whose_times_are_gone_stay_as_one_span():
    """What is left of them is their sum."""
    timeline = Timeline(4, max_details=128)
    timeline.mark("r", "accepted", 0.0)
    timeline.mark("r", "started", 0.0, index=0)
    for step in range(300):
        timeline.scheduled(step, float(step), [("r", 0, 2)])
    (row,) = rows_of("r", timeline.of("r"))
    rest = row.spans[0]
    assert rest.kind == "steps"
    assert rest.facts["steps"] + len(row.spans) - 1 == 300
    assert rest.facts["num_tokens"] == 2 * rest.facts["steps"]
    assert rest.end == row.spans[1].begin
    require_valid(chrome_trace({"r": timeline.of("r")}))


def test_a_choice_that_is_held_back_shows_it():
    """It has a seat and no step: the span goes on until the next one."""
    timeline = Timeline(4)
    timeline.mark("r", "accepted", 0.0)
    timeline.mark("r", "started", 1.0, index=0)
    timeline.scheduled(0, 1.0, [("r", 0, 4)])
    timeline.step_ended(0, 2.0)
    timeline.mark("r", "waiting", 2.0, reason="stalled", index=0)
    timeline.scheduled(7, 5.0, [("r", 0, 1)])
    (row,) = rows_of("r", timeline.of("r"))
    held = [(s.label, s.begin, s.end) for s in row.spans if s.kind == "waiting"]
    assert held == [("queued", 0.0, 1.0), ("waiting: stalled", 2.0, 5.0)]


def test_a_refusal_and_nothing_at_all():
    """A refused request is a row with a moment; an unknown one is no row."""
    timeline = Timeline(4)
    timeline.mark("r", "accepted", 1.0)
    timeline.mark("r", "refused", 1.5, plugin="q", reason="queue_full")
    events = require_valid(chrome_trace({"r": timeline.of("r"), "unknown": ()}))
    (refused,) = [e for e in events if e["name"] == "refused"]
    assert refused["args"] == {"plugin": "q", "reason": "queue_full"}
    assert [e["args"] for e in events if e["ph"] == "C"][-1] == {"running": 0, "waiting": 0}
    assert [e["name"] for e in chrome_trace({})["traceEvents"]] == ["process_name"]
