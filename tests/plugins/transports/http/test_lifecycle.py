"""Hang-ups, slow readers, overload, and the end of engine and server."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from enginebay.conformance.openai_checks import check_error, check_stream
from enginebay.errors import RequestRefused, StackError
from enginebay.flow import Refusal
from enginebay.hookspecs.transport import TransportContext
from enginebay.plugins.transports import http
from enginebay.plugins.transports.http.chat import read_chat
from enginebay.plugins.transports.http.exchange import Exchange
from enginebay.plugins.transports.http.gateway import Bounds, Gateway

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def until(condition, seconds=10.0):
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def raw_post(server, body, *, receive_buffer=None):
    """A socket on which a request was sent."""
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.connect(("127.0.0.1", server.transport.port))
    raw = json.dumps(body).encode()
    sock.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(raw), raw)
    )
    return sock


@pytest.mark.parametrize("stream", [False, True])
def test_a_hang_up_cancels_at_once(server, stream):
    """Streaming or not, while it waits or while it generates."""
    server.client.hold.set()
    before = len(server.client.submitted)
    sock = raw_post(server, BODY | {"stream": stream, "max_tokens": 10**6})
    assert until(lambda: len(server.client.submitted) > before)
    request = server.client.submitted[-1]
    sock.close()
    assert until(lambda: (request.id, "cancelled") in server.client.cancelled)
    server.client.hold.clear()
    server.alive()


def test_a_hang_up_in_the_middle_of_a_stream(server):
    """After some words were read."""
    before = len(server.client.submitted)
    sock = raw_post(server, BODY | {"stream": True, "max_tokens": 10**6})
    while b"w1" not in sock.recv(4096):
        continue
    sock.close()
    assert until(lambda: len(server.client.submitted) > before)
    request = server.client.submitted[-1]
    assert until(lambda: (request.id, "cancelled") in server.client.cancelled)
    server.alive()


def test_a_hang_up_while_the_request_is_being_submitted(server):
    """It was accepted for nobody: cancelled once the engine knows it."""
    entered, go = threading.Event(), threading.Event()

    def slow(request):
        entered.set()
        go.wait(10)

    server.client.on_submit = slow
    sock = raw_post(server, BODY | {"max_tokens": 10**6})
    assert entered.wait(10)
    seen = len(server.client.cancelled)
    sock.close()
    assert until(lambda: len(server.client.cancelled) > seen)
    assert not server.client._running
    server.client.on_submit = lambda request: None
    seen = len(server.client.cancelled)
    go.set()
    assert until(lambda: len(server.client.cancelled) > seen)
    server.alive()


def test_a_task_that_is_cancelled_while_it_submits(scripted):
    """The server gave up on the answer: what is accepted afterwards is cancelled."""
    client = scripted()
    entered, go = threading.Event(), threading.Event()

    def slow(request):
        entered.set()
        go.wait(10)

    client.on_submit = slow
    gateway = Gateway({"m": client}, {}, Bounds(4, 1, 30.0))
    exchange = Exchange(None)
    raw = json.dumps(BODY | {"max_tokens": 10**6}).encode()

    async def give_up():
        gateway.start(asyncio.get_running_loop())
        task = asyncio.create_task(gateway.submit(exchange, lambda: read_chat(raw, 1)))
        while not entered.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        gateway.close(exchange)

    asyncio.run(give_up())
    client.cancelled.clear()
    go.set()
    assert until(lambda: bool(client.cancelled))
    assert client.idle()
    assert gateway.num_open == 0
    gateway.stop()
    client.close()


def test_a_hang_up_before_the_body_is_complete(server):
    """Nothing is submitted."""
    before = len(server.client.submitted)
    with socket.create_connection(("127.0.0.1", server.transport.port)) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
            b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        )
    server.alive()
    assert len(server.client.submitted) == before + 1


def test_a_body_that_does_not_arrive(start):
    """408 after the bound."""
    server = start(body_seconds=0.1)
    with socket.create_connection(("127.0.0.1", server.transport.port)) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
            b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        )
        assert b" 408 " in sock.recv(200)


def test_written_tokens_are_acknowledged(server):
    """Of every choice, up to the last token; streams carry their window."""
    server.client.acknowledged.clear()
    with server.streaming(n=2, max_tokens=5) as answer:
        answer.read()
    request = server.client.submitted[-1]
    assert request.window == 256

    def last():
        reports = [w for batch in list(server.client.acknowledged) for w in batch]
        return {w.index: w.num_tokens for w in reports if w.request_id == request.id}

    assert until(lambda: last() == {0: 5, 1: 5})
    server.chat(max_tokens=1)
    assert server.client.submitted[-1].window == 0


def test_a_sink_that_is_full_loses_nothing(start):
    """Sixteen choices a step against a buffer of one chunk: every word arrives."""
    server = start(max_buffer=1)
    with server.streaming(n=16, max_tokens=5) as answer:
        stream = check_stream(answer.read(), chat=True, n=16)
    assert {c.text for c in stream.choices.values()} == {"w0 w1 w2 w3 w4 "}


def test_a_small_window_still_streams_everything(start):
    """The engine may be only two tokens ahead: acknowledgements keep it going."""
    server = start(window=2)
    with server.streaming(max_tokens=40) as answer:
        stream = check_stream(answer.read(), chat=True)
    assert len(stream.choices[0].text.split()) == 40


def test_a_reader_that_takes_nothing_is_cut(start):
    """The engine stalls at the window; then the connection is dropped, neighbours not."""
    server = start(slow_reader_seconds=0.5, window=100_000)
    server.client.acknowledged.clear()
    sock = raw_post(server, BODY | {"stream": True, "max_tokens": 10**6}, receive_buffer=2048)
    server.client.hold.clear()
    assert until(lambda: any(r == "slow_reader" for _, r in server.client.cancelled), 60)
    acknowledged = max(w.num_tokens for batch in server.client.acknowledged for w in batch)
    assert acknowledged < 2000  # not the megabytes that a kernel would hold
    server.alive()
    sock.close()


def test_the_loop_wakes_once_a_step(server):
    """Sixteen streams: events leave in batches, far fewer than there are events."""
    batches, events = server.client.batches, server.client.events_sent

    def one(_):
        body = BODY | {"stream": True, "max_tokens": 30}
        with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
            answer = client.post("/v1/chat/completions", json=body)
        return check_stream(answer.content, chat=True).choices[0].text

    server.client.hold.set()
    before = len(server.client.submitted)
    with ThreadPoolExecutor(16) as pool:
        texts = pool.map(one, range(16))
        assert until(lambda: len(server.client.submitted) == before + 16)
        server.client.hold.clear()
        assert set(texts) == {"".join(f"w{i} " for i in range(30))}
    assert server.client.events_sent - events == 16 * 32
    assert server.client.batches - batches < 16 * 4
    server.alive()


def test_case_31_overload_is_refused_quickly(server):
    """40 requests against 12 places: the counts add up and health still answers."""
    taken = set()
    lock = threading.Lock()

    def admit(request):
        with lock:
            if len(taken) >= 12:
                raise RequestRefused(
                    Refusal(
                        plugin="bounded-queue",
                        reason="queue_full",
                        kind="server",
                        message="12 requests are here",
                        limit=12,
                        current=len(taken),
                        retry_after=1,
                    )
                )
            taken.add(request.id)

    server.client.on_submit = admit
    server.client.hold.set()
    with (
        httpx.Client(
            base_url=server.url,
            timeout=60,
            trust_env=False,
            limits=httpx.Limits(max_connections=None),
        ) as client,
        ThreadPoolExecutor(40) as pool,
    ):
        answers = [pool.submit(client.post, "/v1/chat/completions", json=BODY) for _ in range(40)]
        assert until(lambda: sum(a.done() for a in answers) == 28)
        assert server.http.get("/health").status_code == 200
        server.client.hold.clear()
        statuses = sorted(a.result().status_code for a in answers)
    server.client.on_submit = lambda request: None
    assert statuses == [200] * 12 + [503] * 28
    server.alive()


def test_too_many_wait_to_be_read(start):
    """The transport's own queue is bounded too: 503 with Retry-After."""
    server = start(encode_threads=1, max_pending=2)
    go = threading.Event()
    server.client.on_submit = lambda request: go.wait(10)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(server.chat) for _ in range(2)]
        assert until(lambda: server.transport._gateway._pending == 2)
        answer = server.chat()
        go.set()
        assert [w.result().status_code for w in waiting] == [200, 200]
    assert answer.status_code == 503
    assert "retry-after" in answer.headers
    assert check_error(answer.content)["code"] == "too_many_pending"
    server.alive()


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


def test_a_sink_that_raises_ends_its_request_alone(start, monkeypatch):
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
    assert until(lambda: len(server.client.cancelled) == 1)
    with server.streaming() as answer:
        check_stream(answer.read(), chat=True)
    server.alive()


@pytest.mark.parametrize("quietly", [False, True])
def test_case_32_a_dead_engine(start, quietly):
    """Requests get an error, not a hang; health, readiness and new requests say 503."""
    server = start()
    server.client.hold.set()
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(server.chat)
        with server.streaming() as answer:
            assert until(lambda: len(server.client.submitted) == 2)
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


def test_case_33_draining(start):
    """New requests get 503 and readiness turns; those under way finish; serve returns."""
    server = start()
    server.client.hold.set()
    with server.streaming(max_tokens=4) as answer:
        assert until(lambda: bool(server.client.submitted))
        server.transport.stop()
        assert until(lambda: server.http.get("/ready").status_code == 503)
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


def test_case_33_the_timeout_ends_what_is_left(start):
    """Streams end with an error event, whole answers with 503."""
    server = start(shutdown_timeout=0.2)
    server.client.hold.set()
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(server.chat)
        with server.streaming() as answer:
            assert until(lambda: len(server.client.submitted) == 2)
            server.transport.stop()
            stream = check_stream(answer.read(), chat=True)
        assert stream.error["message"] == "the server is shutting down"
        assert whole.result().status_code == 503
    server.thread.join(20)
    assert not server.thread.is_alive()


def test_case_33_asked_twice_it_ends_at_once(start):
    """The second time nobody waits for the timeout."""
    server = start(shutdown_timeout=600.0)
    server.client.hold.set()
    with server.streaming() as answer:
        assert until(lambda: bool(server.client.submitted))
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
