"""The HTTP transport over a scripted engine, on real sockets."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from enginebay.conformance.scripted_client import ScriptedClient
from enginebay.hookspecs.sink import SinkContext
from enginebay.hookspecs.transport import TransportContext
from enginebay.plugins.sinks import json as json_sink
from enginebay.plugins.sinks import sse as sse_sink
from enginebay.plugins.transports import http

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def until(condition, seconds=10.0):
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


class Server:
    """The transport, serving in a thread."""

    def __init__(self, clients, max_buffer=65536, **options):
        self.clients = clients
        self.client = next(iter(clients.values()))
        context = TransportContext(
            clients=clients,
            sinks={
                "sse": sse_sink.enginebay_sink(
                    sse_sink.Options(max_buffer=max_buffer), SinkContext()
                ),
                "json": json_sink.enginebay_sink(json_sink.Options(), SinkContext()),
            },
            version="v-test",
        )
        options = {"port": 0, "shutdown_timeout": 5.0} | options
        self.transport = http.enginebay_transport(http.Options(**options), context)
        self.thread = threading.Thread(target=self.transport.serve)
        self.thread.start()
        assert self.transport.started.wait(10)
        self.url = f"http://127.0.0.1:{self.transport.port}"
        self.http = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    def chat(self, **fields):
        """POST a chat request."""
        return self.http.post("/v1/chat/completions", json=BODY | fields)

    def complete(self, **fields):
        """POST a completion request."""
        return self.http.post("/v1/completions", json={"model": "m", "prompt": "hi"} | fields)

    @contextlib.contextmanager
    def streaming(self, **fields) -> Iterator[httpx.Response]:
        """A chat stream."""
        body = BODY | {"stream": True} | fields
        with self.http.stream("POST", "/v1/chat/completions", json=body) as response:
            yield response

    def raw_post(self, *, receive_buffer=None, **fields):
        """A socket on which a chat request was sent."""
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect(("127.0.0.1", self.transport.port))
        raw = json.dumps(BODY | fields).encode()
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(raw), raw)
        )
        return sock

    def alive(self):
        """A plain request answers as ever, and nothing is left behind."""
        answer = self.chat()
        assert answer.status_code == 200, answer.text
        words = json.loads(answer.text)["choices"][0]["message"]["content"].split()
        assert words == [f"w{i}" for i in range(8)]
        assert self.client.idle()
        assert until(lambda: self.transport._gateway.num_open == 0)

    def close(self):
        self.http.close()
        self.transport.stop()
        self.transport.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()
        for client in self.clients.values():
            client.close()


@pytest.fixture(scope="module")
def server():
    """One server for a module; every test must leave it alive."""
    running = Server({"m": ScriptedClient()})
    yield running
    running.close()


def _starter():
    servers = []

    def start(clients=None, **options):
        servers.append(Server(clients or {"m": ScriptedClient()}, **options))
        return servers[-1]

    yield start
    for running in servers:
        running.close()


@pytest.fixture
def start():
    """Starts servers with options of their own."""
    yield from _starter()


@pytest.fixture(scope="module")
def start_once():
    """The same, for the tests of a module."""
    yield from _starter()


@pytest.fixture
def scripted():
    """A new scripted engine."""
    return ScriptedClient


@pytest.fixture
def wait_until():
    """Waits for something to become true."""
    return until
