"""The end of requests, engines and servers."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from enginebay.conformance.openai_checks import check_error, check_stream
from enginebay.errors import StackError
from enginebay.hookspecs.transport import TransportContext
from enginebay.plugins.transports import http


def test_case_29_an_error_in_the_middle(server):
    """One error event ends the stream, a 500 the whole answer; others are untouched."""
    server.client.fail_after = 3
    with server.streaming(max_tokens=9) as answer:
        stream = check_stream(answer.read(), chat=True)
    whole = server.chat(max_tokens=9)
    server.client.fail_after = None
    assert stream.choices[0].text == "w0 w1 w2 "
    assert stream.error["message"] == "a plugin failed on this request"
    assert whole.status_code == 500
    check_error(whole.content)
    server.alive()


def test_a_sink_that_raises_ends_its_request_alone(start, monkeypatch, wait_until):
    """The engine request is cancelled, the stream ends with an error event."""
    from enginebay.plugins.sinks.sse import SseSink

    server = start()
    offer = SseSink.offer

    def broken(self, event):
        if self._answer.reply.n == 2:
            raise KeyError("secret")
        return offer(self, event)

    monkeypatch.setattr(SseSink, "offer", broken)
    with server.streaming(n=2, max_tokens=10**6) as answer:
        raw = answer.read()
    assert check_error(raw.removeprefix(b"data: "))["code"] == "internal_error"
    assert b"secret" not in raw
    assert wait_until(lambda: len(server.client.cancelled) == 1)
    with server.streaming() as answer:
        check_stream(answer.read(), chat=True)
    server.alive()


@pytest.mark.parametrize("quietly", [False, True])
def test_case_32_a_dead_engine(start, quietly, wait_until):
    """Requests get an error, not a hang; health, readiness and new requests say 503."""
    server = start()
    server.client.hold.set()
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(server.chat)
        with server.streaming() as answer:
            assert wait_until(lambda: len(server.client.submitted) == 2)
            server.client.die(quietly=quietly)
            stream = check_stream(answer.read(), chat=True)
        assert stream.error is not None
        assert whole.result().status_code == 503
    assert server.http.get("/health").status_code == 503
    ready = server.http.get("/ready")
    assert (ready.status_code, ready.json()["state"]) == (503, "failed")
    refused = server.chat()
    assert refused.status_code == 503
    assert "retry-after" in refused.headers


def test_case_33_draining(start, wait_until):
    """New requests get 503 and readiness turns; those under way finish; serve returns."""
    server = start()
    server.client.hold.set()
    with server.streaming(max_tokens=4) as answer:
        assert wait_until(lambda: bool(server.client.submitted))
        server.transport.stop()
        assert wait_until(lambda: server.http.get("/ready").status_code == 503)
        refused = server.chat()
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert check_error(refused.content)["code"] == "shutting_down"
        server.client.hold.clear()
        stream = check_stream(answer.read(), chat=True)
    assert stream.choices[0].finish_reason == "length"
    server.thread.join(20)
    assert not server.thread.is_alive()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.transport.port), timeout=1).close()


def test_case_33_the_timeout_ends_what_is_left(start, wait_until):
    """Streams end with an error event, whole answers with 503."""
    server = start(shutdown_timeout=0.2)
    server.client.hold.set()
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(server.chat)
        with server.streaming() as answer:
            assert wait_until(lambda: len(server.client.submitted) == 2)
            server.transport.stop()
            stream = check_stream(answer.read(), chat=True)
        assert stream.error["message"] == "the server is shutting down"
        assert whole.result().status_code == 503
    server.thread.join(20)
    assert not server.thread.is_alive()


def test_case_33_asked_twice_it_ends_at_once(start, wait_until):
    """The second time nobody waits for the timeout."""
    server = start(shutdown_timeout=600.0)
    server.client.hold.set()
    with server.streaming() as answer:
        assert wait_until(lambda: bool(server.client.submitted))
        server.transport.stop()
        server.transport.stop()
        stream = check_stream(answer.read(), chat=True)
    assert stream.error is not None
    server.thread.join(20)
    assert not server.thread.is_alive()


def test_a_taken_port_is_named(server):
    """The start fails saying which address and what to do."""
    context = TransportContext(clients={}, sinks={"sse": None, "json": None}, version="")
    transport = http.enginebay_transport(http.Options(port=server.transport.port), context)
    with pytest.raises(StackError, match=f"port {server.transport.port}.*choose another"):
        transport.serve()
