"""Clients that leave."""

import asyncio
import contextlib
import json
import socket
import threading

import pytest

from enginebay.plugins.transports.http.call import Origin
from enginebay.plugins.transports.http.chat import read_chat
from enginebay.plugins.transports.http.exchange import Exchange
from enginebay.plugins.transports.http.gateway import Bounds, Gateway

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("stream", [False, True])
def test_a_hang_up_cancels_at_once(server, stream, wait_until):
    """Streaming or not, while it waits or while it generates."""
    server.client.hold.set()
    before = len(server.client.submitted)
    sock = server.raw_post(stream=stream, max_tokens=10**6)
    assert wait_until(lambda: len(server.client.submitted) > before)
    request = server.client.submitted[-1]
    sock.close()
    assert wait_until(lambda: (request.id, "cancelled") in server.client.cancelled)
    server.client.hold.clear()
    server.alive()


def test_a_hang_up_in_the_middle_of_a_stream(server, wait_until):
    """After some words were read."""
    before = len(server.client.submitted)
    sock = server.raw_post(stream=True, max_tokens=10**6)
    while b"w1" not in sock.recv(4096):
        continue
    sock.close()
    assert wait_until(lambda: len(server.client.submitted) > before)
    request = server.client.submitted[-1]
    assert wait_until(lambda: (request.id, "cancelled") in server.client.cancelled)
    server.alive()


def test_a_hang_up_while_the_request_is_being_submitted(server, wait_until):
    """It was accepted for nobody: cancelled once the engine knows it."""
    entered, go = threading.Event(), threading.Event()

    def slow(request):
        entered.set()
        go.wait(30)

    server.client.on_submit = slow
    sock = server.raw_post(max_tokens=10**6)
    assert entered.wait(10)
    seen = len(server.client.cancelled)
    sock.close()
    assert wait_until(lambda: len(server.client.cancelled) > seen)
    assert not server.client._running
    server.client.on_submit = lambda request: None
    seen = len(server.client.cancelled)
    go.set()
    assert wait_until(lambda: len(server.client.cancelled) > seen)
    server.alive()


def test_a_task_that_is_cancelled_while_it_submits(scripted, wait_until):
    """The server gave up on the answer: what is accepted afterwards is cancelled."""
    client = scripted()
    entered, go = threading.Event(), threading.Event()

    def slow(request):
        entered.set()
        go.wait(30)

    client.on_submit = slow
    gateway = Gateway({"m": client}, {}, Bounds(4, 1, 30.0))
    exchange = Exchange(None)
    raw = json.dumps(BODY | {"max_tokens": 10**6}).encode()

    async def give_up():
        gateway.start(asyncio.get_running_loop())
        task = asyncio.create_task(gateway.submit(exchange, lambda: read_chat(raw, Origin(), 1)))
        while not entered.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        gateway.close(exchange)

    asyncio.run(give_up())
    client.cancelled.clear()
    go.set()
    assert wait_until(lambda: bool(client.cancelled))
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
