"""Overload, deadlines and retries as the official client sees them, over a real engine."""

import gc

import openai
import pytest

FIELDS = {"model": "tiny-llama", "prompt": "x", "temperature": 0}
LONG = {**FIELDS, "max_tokens": 400, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def narrow(server_of):
    """One seat and one place to wait."""
    running = server_of(
        {
            "engine.max_sequences": 1,
            "door": [{"use": "bounded-queue", "max_waiting": 1, "retry_after": 1.2}],
        }
    )
    yield running
    assert running.idle()
    running.close()
    gc.collect()


@pytest.fixture
def asks(narrow, monkeypatch):
    """What the door is asked."""
    seen = []
    door = narrow.serving.assembly.engine.intake.door
    ask = door.ask
    monkeypatch.setattr(door, "ask", lambda facts, load: seen.append(facts) or ask(facts, load))
    return seen


@pytest.fixture
def full(narrow):
    """Somebody holds the seat, somebody waits."""
    streams = [narrow.client.completions.create(stream=True, **LONG)]
    next(iter(streams[0]))
    intake = narrow.serving.assembly.engine.intake
    streams.append(narrow.client.completions.create(stream=True, **LONG))
    assert intake.num_waiting == 1
    yield narrow
    for stream in streams:
        stream.close()
    assert narrow.idle()


@pytest.mark.parametrize("stream", [False, True])
def test_the_official_client_reads_a_refusal(full, stream):
    """A status and plain JSON even where a stream was asked for: who, why, which limit, and
    when to come back in whole seconds, rounded up."""
    with pytest.raises(openai.InternalServerError) as refused:
        full.client.completions.create(stream=stream, max_tokens=1, **FIELDS)
    error, answer = refused.value, refused.value.response
    assert error.status_code == 503
    assert error.code == error.body["reason"] == "queue_full"
    assert error.body["plugin"] == "bounded-queue"
    assert error.body["limit"] == 1
    assert error.body["current"] >= 1
    assert int(answer.headers["retry-after"]) >= error.body["retry_after"] > 0
    assert answer.headers["content-type"] == "application/json"
    assert error.request_id == answer.headers["x-request-id"]


def test_a_retry_is_known_as_one(narrow, asks):
    """The official client counts its own retries, others may; what is no count is none."""
    narrow.complete(max_tokens=1)
    for name, value in (
        ("x-stainless-retry-count", "2"),
        ("retry-attempt", "3"),
        ("x-stainless-retry-count", "-1"),
        ("x-stainless-retry-count", "many"),
        ("x-stainless-retry-count", "9" * 50),
        ("x-stainless-retry-count", "1.5"),
    ):
        json = {**FIELDS, "max_tokens": 1}
        narrow.http.post("/v1/completions", json=json, headers={name: value})
    assert [ask.attempt for ask in asks] == [0, 2, 3, 0, 0, 0, 0]


def test_the_client_that_retries_says_so(full, asks):
    """Turned away, it comes back by itself and names the attempt."""
    patient = full.client.with_options(max_retries=1, timeout=60)
    with pytest.raises(openai.InternalServerError):
        patient.completions.create(max_tokens=1, **FIELDS)
    assert [ask.attempt for ask in asks] == [0, 1]


def test_priority_and_deadline_reach_the_engine(narrow, asks):
    """As they were sent; what is none is refused by name."""
    narrow.complete(max_tokens=1, extra_body={"priority": -7, "deadline": 12.5})
    assert (asks[0].priority, asks[0].deadline) == (-7, 12.5)
    for name, value in (
        ("priority", 2**40),
        ("priority", 1.5),
        ("deadline", 0),
        ("deadline", -1.0),
        ("deadline", "soon"),
    ):
        answer = narrow.http.post("/v1/completions", json={**FIELDS, name: value})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == name
    assert len(asks) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_that_passes_in_the_queue_is_answered(narrow, stream):
    """While the seat is still taken: an empty answer that was aborted."""
    busy = narrow.client.completions.create(stream=True, **LONG)
    next(iter(busy))
    late = narrow.client.completions.create(
        stream=stream, max_tokens=5, extra_body={"deadline": 0.1}, **FIELDS
    )
    chunks = list(late) if stream else [late]
    (choice,) = [c for chunk in chunks for c in chunk.choices if c.finish_reason]
    assert choice.finish_reason == "abort"
    assert "".join(c.text for chunk in chunks for c in chunk.choices) == ""
    assert narrow.serving.assembly.client.snapshot().num_running == 1
    busy.close()
    assert narrow.idle()


def test_a_megabyte_is_refused_untokenized(full, monkeypatch):
    """The door says no before a frontend has read a word of it."""
    read = []
    for _, frontend in full.serving.assembly.engine.intake.frontends.values():
        monkeypatch.setattr(frontend, "encode", read.append)
    answer = full.post("/v1/completions", prompt="word " * 200_000)
    assert answer.status_code == 503
    assert answer.json()["error"]["reason"] == "queue_full"
    assert read == []
