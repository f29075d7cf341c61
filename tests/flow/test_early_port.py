"""The port answers while the model loads, and goes when the load fails."""

import socket
import threading

import httpx
import pytest

from enginebay import serving
from enginebay.config import load_stack
from enginebay.conformance.openai_checks import check_error
from enginebay.errors import ModelError, StackError


@pytest.fixture
def port():
    """One that is free."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def stack_of(model, port):
    """A server at that port."""
    changes = {
        "engine.model": model,
        "engine.num_blocks": 64,
        "transports": ["http"],
        "options.transports.http.port": port,
    }
    return load_stack("reference", changes)


@pytest.fixture
def held(monkeypatch):
    """Loading that waits: (it has begun, let it go on)."""
    begun, go = threading.Event(), threading.Event()
    assemble = serving.assemble

    def slow(*given):
        begun.set()
        assert go.wait(60)
        return assemble(*given)

    monkeypatch.setattr(serving, "assemble", slow)
    yield begun, go
    go.set()


def test_case_32_alive_and_not_ready_while_the_model_loads(tiny, port, held):
    """Health 200, readiness 503 and ``starting``, everything else 503 and when to come back;
    once loaded, requests are answered at the same port."""
    begun, go = held
    started = []
    thread = threading.Thread(target=lambda: started.append(serving.serve(stack_of(tiny, port))))
    thread.start()
    assert begun.wait(60)
    url = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
        assert client.get("/health").json() == {"status": "ok"}
        ready = client.get("/ready")
        assert (ready.status_code, ready.json()["state"]) == (503, "starting")
        body = {"model": "tiny-llama", "prompt": "x", "max_tokens": 2}
        for answer in (client.get("/v1/models"), client.post("/v1/completions", json=body)):
            assert (answer.status_code, check_error(answer.content)["code"]) == (503, "starting")
            assert int(answer.headers["retry-after"]) >= 1
        go.set()
        thread.join(60)
        (running,) = started
        waiting = threading.Thread(target=running.wait)
        waiting.start()
        assert client.get("/ready").status_code == 200
        assert client.post("/v1/completions", json=body).status_code == 200
        version = client.get("/version").json()["service_version"]
        assert version == running.assembly.version
    running.transports[0].stop()
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_load_that_fails_lets_the_port_go(tiny, port, monkeypatch):
    """The error is the caller's, nothing listens any more, and no thread stays."""
    seen = []

    def fail(*given):
        seen.append(httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code)
        raise ModelError("weights are missing")

    monkeypatch.setattr(serving, "assemble", fail)
    with pytest.raises(ModelError, match="weights are missing"):
        serving.serve(stack_of(tiny, port))
    assert seen == [200]
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    assert "http-loop" not in {thread.name for thread in threading.enumerate()}


def test_a_taken_port_is_told_before_anything_is_loaded(tiny, monkeypatch):
    """Minutes of loading are not spent on it."""
    monkeypatch.setattr(serving, "assemble", lambda *given: pytest.fail("it was loaded"))
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(StackError, match=f"port {port}.*choose another"):
            serving.serve(stack_of(tiny, port))


def test_a_stack_without_transports_is_told(tiny):
    """The error says what to add."""
    with pytest.raises(StackError, match="add transports"):
        serving.serve(stack_of(tiny, 0).without("transports"))
