"""The timeline observer: one line of JSON a finished request, never on the step thread."""

import json

import pytest

from enginebay.errors import StackError
from enginebay.flow import Refusal, Usage
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.observer import ObserverContext, RequestRecord, StepRecord
from enginebay.plugins.observers import timeline as plugin
from enginebay.timeline import Timeline


def make(timeline, **options):
    limits = Limits(
        max_model_len=64, max_step_tokens=16, max_sequences=4, block_size=16, num_blocks=8
    )
    context = ObserverContext(model_name="tiny", limits=limits, timeline=timeline)
    return plugin.enginebay_observer(plugin.Options(**options), context)


def record(request_id="r"):
    return RequestRecord(
        request_id=request_id,
        tenant="t",
        usage=Usage(prompt_tokens=3, completion_tokens=2),
        reasons=("stop",),
        n=1,
        max_tokens=5,
        arrival=1.0,
        started=1.5,
        first_token=2.0,
        finished=3.0,
    )


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_finished_request_becomes_one_line(tmp_path):
    """The line holds the events, the latencies and how it ended."""
    timeline, path = Timeline(4), tmp_path / "timeline.jsonl"
    observer = make(timeline, path=str(path), linger=0.0)
    timeline.mark("r", "accepted", 1.0)
    timeline.mark("r", "started", 1.5)
    timeline.mark("r", "first_token", 2.0)
    observer.on_request(record())
    observer.close()
    (line,) = lines(path)
    assert (line["request_id"], line["tenant"], line["reasons"]) == ("r", "t", ["stop"])
    assert [event["what"] for event in line["events"]] == ["accepted", "started", "first_token"]
    assert line["latencies"]["queue"] == 0.5
    assert line["usage"]["completion_tokens"] == 2


def test_tokens_written_after_the_end_are_in_the_line(tmp_path):
    """The line waits for the reader's last tokens; closing does not cut it off."""
    timeline, path = Timeline(4), tmp_path / "timeline.jsonl"
    observer = make(timeline, path=str(path), linger=60.0)
    timeline.mark("r", "accepted", 1.0)
    observer.on_request(record())
    timeline.mark("r", "token_written", 4.0, count=2, index=0)
    observer.close()
    (line,) = lines(path)
    assert line["events"][-1]["what"] == "token_written"


def test_lines_are_appended(tmp_path):
    """A second start keeps what the first one wrote."""
    path = tmp_path / "timeline.jsonl"
    for name in ("a", "b"):
        observer = make(Timeline(4), path=str(path), linger=0.0)
        observer.on_request(record(name))
        observer.close()
        observer.close()
    assert [line["request_id"] for line in lines(path)] == ["a", "b"]


def test_without_a_path_it_is_off():
    """No thread, no file, no metric."""
    observer = make(Timeline(4))
    observer.on_request(record())
    observer.on_refusal(Refusal(plugin="q", reason="r", kind="server", message=""))
    observer.close()
    assert observer.render() == ""


def test_what_does_not_fit_is_dropped_and_counted(tmp_path):
    """A slow disk costs lines, never memory or the step thread's time."""
    path = tmp_path / "timeline.jsonl"
    observer = make(Timeline(4), path=str(path), linger=60.0, max_pending=2)
    for number in range(9):
        observer.on_request(record(str(number)))
    told = observer.render()
    observer.close()
    assert len(lines(path)) + int(told.split()[-1]) == 9
    assert 2 <= len(lines(path)) <= 3


def test_a_full_disk_is_reported_at_the_next_request():
    """The observer raises then, so the engine switches it off and names it."""
    observer = make(Timeline(4), path="/dev/full", linger=0.0)
    observer.on_request(record())
    observer.close()
    with pytest.raises(OSError, match="No space left"):
        observer.on_request(record())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"path": "/nowhere/at/all.jsonl"}, "path '/nowhere/at/all.jsonl' can't be written"),
        ({"linger": -1.0}, "linger is -1.0"),
        ({"max_pending": 0}, "linger is 1.0 and max_pending is 0"),
    ],
)
def test_an_impossible_option_stops_the_start(options, told):
    """The message names the option and its value."""
    with pytest.raises(StackError, match=f"timeline: {told}"):
        make(Timeline(4), **options)


def written(timeline, name, time):
    """A finished request's timeline."""
    timeline.mark(name, "accepted", time, tenant="t")
    timeline.mark(name, "started", time + 1, index=0)
    timeline.scheduled(3, time + 1, [(name, 0, 4)])
    timeline.step_ended(3, time + 2)
    timeline.tokens("token_ready", name, 0, time + 2, 1)
    timeline.mark(name, "finished", time + 2, index=0, reason="length")


def step(running, waiting, time=1.0):
    """A record of which only two gauges matter."""
    zeros = ("num_prefill_tokens", "num_decode_tokens", "num_generated", "num_sequences")
    return StepRecord(
        step=1,
        time=time,
        duration=0.0,
        executor_duration=0.0,
        num_running=running,
        num_waiting=waiting,
        num_used_blocks=0,
        num_blocks=8,
        **dict.fromkeys(zeros, 0),
    )


def test_a_trace_is_whole_after_every_request(tmp_path):
    """A JSON array at each moment: a crash leaves a file that opens."""
    timeline, path = Timeline(4), tmp_path / "trace.json"
    file = plugin.TraceFile(path, timeline, "tiny")
    assert [event["name"] for event in json.loads(path.read_text())] == ["process_name"]
    for number in range(3):
        written(timeline, f"r{number}", 10.0 * number)
        file.write(record(f"r{number}"), [(1.0 * number, number, 2)])
        events = json.loads(path.read_text())
        names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
        assert names == [f"r{n}" for n in range(number + 1)]
        assert [e["args"]["running"] for e in events if e["ph"] == "C"] == list(range(number + 1))
    file.close([(9.0, 0, 0)])
    events = json.loads(path.read_text())
    assert len({e["tid"] for e in events if e["ph"] == "X"}) == 3
    assert events[-1]["args"] == {"running": 0, "waiting": 0}


@pytest.mark.parametrize("cut", [0, 1, 3, 10, 200, "comma", "all but one"])
def test_a_torn_trace_is_taken_up_at_its_last_whole_event(tmp_path, cut):
    """What a crash left of the last write is cut off; all before it stays."""
    timeline, path = Timeline(4), tmp_path / "trace.json"
    written(timeline, "r0", 1.0)
    file = plugin.TraceFile(path, timeline, "tiny")
    file.write(record("r0"), [])
    file.close([])
    whole = path.read_bytes()
    events = json.loads(whole)
    if cut == "comma":
        path.write_bytes(whole.removesuffix(b"\n]\n") + b",\n")
    else:
        path.write_bytes(whole[: 1 if cut == "all but one" else len(whole) - cut])
    plugin.TraceFile(path, timeline, "again").close([])
    after = json.loads(path.read_text())
    assert after[-1]["args"] == {"name": "again"}
    assert after[:-1] == events[: len(after) - 1]
    if cut in (0, "comma"):
        assert after[:-1] == events


def test_the_trace_format_writes_requests_and_how_many_ran(tmp_path):
    """Counters only where they change."""
    timeline, path = Timeline(4), tmp_path / "trace.json"
    observer = make(timeline, path=str(path), format="trace", linger=0.0)
    written(timeline, "r", 1.0)
    for running, waiting in ((1, 4), (1, 4), (2, 3), (0, 0)):
        observer.on_step(step(running, waiting))
    observer.on_request(record())
    observer.close()
    events = json.loads(path.read_text())
    assert {"process_name", "thread_name", "prefill", "ready"} <= {e["name"] for e in events}
    assert [e["args"]["running"] for e in events if e["ph"] == "C"] == [1, 2, 0]


def test_a_file_that_is_no_trace_is_left_alone(tmp_path):
    """It might be somebody's."""
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n")
    with pytest.raises(StackError, match=r"timeline: path .*notes.txt' holds no trace"):
        make(Timeline(4), path=str(path), format="trace")
    assert path.read_text() == "dear diary\n"
