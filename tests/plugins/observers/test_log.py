"""The log observer: a line a request, a bounded number of lines for refusals."""

import pytest
from structlog.testing import capture_logs

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of
from enginebay.errors import StackError
from enginebay.flow import Refusal
from enginebay.hookspecs.observer import ObserverContext
from enginebay.plugins.observers import log as plugin
from enginebay.plugins.schedulers.chunked import Chunked
from enginebay.plugins.schedulers.chunked import Options as ChunkedOptions
from enginebay.timeline import Timeline


def make(**options):
    context = ObserverContext(model_name="m", limits=limits_of(), timeline=Timeline(4))
    return plugin.enginebay_observer(plugin.Options(**options), context)


def refusal(reason="queue_full"):
    return Refusal(plugin="q", reason=reason, kind="server", message="", limit=8.0, retry_after=1.5)


def lines_of(*requests, before=lambda harness: None, **options):
    """What is logged of requests that run to their end."""
    harness = Harness(
        lambda given: Chunked(ChunkedOptions(), given),
        limits_of(),
        observers=[("log", make(**options))],
    )
    with capture_logs() as lines:
        for request in requests:
            harness.submit(request)
        before(harness)
        harness.finish()
    return [line for line in lines if line["event"].startswith("request ")]


def test_a_request_is_one_line_with_its_counts_and_latencies():
    """Whose it is, what it got, and how long it took."""
    (line,) = lines_of(request_of("r", num_prompt=6, max_tokens=5, n=2, tenant="t"))
    assert (line["log_level"], line["event"]) == ("info", "request ended")
    assert (line["request_id"], line["tenant"]) == ("r", "t")
    assert line["reasons"] == ["length", "length"]
    assert (line["prompt_tokens"], line["completion_tokens"]) == (6, 10)
    assert 0 <= line["queue"] < line["first_token"] < line["seconds"]
    assert line["token_interval"] > 0
    assert not {"error", "late"} & line.keys()


def test_a_missed_deadline_is_louder():
    """And what never happened is left out."""
    (line,) = lines_of(
        request_of("r", num_prompt=6, max_tokens=5, deadline=0.001),
        before=lambda harness: harness.clock.wait_until(1.0),
        level="debug",
        trouble="error",
    )
    assert (line["log_level"], line["reasons"], line["late"]) == ("error", ["deadline"], True)
    assert not {"queue", "first_token", "token_interval"} & line.keys()


def test_a_refusal_is_one_line():
    """Who, why, against which limit, and when to come back."""
    observer = make()
    with capture_logs() as lines:
        observer.on_refusal(refusal())
    assert lines == [
        {
            "event": "request refused",
            "log_level": "warning",
            "plugin": "q",
            "reason": "queue_full",
            "kind": "server",
            "limit": 8.0,
            "retry_after": 1.5,
        }
    ]


def test_a_flood_of_refusals_is_a_few_lines_that_count_the_rest(monkeypatch):
    """The log can't become what brings the server down."""
    now = [100.0]
    monkeypatch.setattr(plugin.time, "monotonic", lambda: now[0])
    observer = make(refusals_per_second=3)
    with capture_logs() as lines:
        for _ in range(500):
            observer.on_refusal(refusal())
        now[0] = 101.5
        observer.on_refusal(refusal("late"))
    assert [line.get("left_out") for line in lines] == [None, None, None, 497]
    assert lines[-1]["reason"] == "late"


def test_refusals_can_be_left_to_the_metrics():
    """Zero lines a second, and nothing else happens."""
    observer = make(refusals_per_second=0)
    with capture_logs() as lines:
        observer.on_refusal(refusal())
    assert lines == []
    assert observer.render() == ""


def test_a_negative_bound_stops_the_start():
    """The message names the option and its value."""
    with pytest.raises(StackError, match="log: refusals_per_second is -1"):
        make(refusals_per_second=-1)
