"""The timeline observer: one line of JSON a finished request, never on the step thread."""

import json

import pytest

from enginebay.errors import StackError
from enginebay.flow import Refusal, Usage
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.observer import ObserverContext, RequestRecord
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
