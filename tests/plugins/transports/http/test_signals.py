"""Signals, with the transport in the main thread as a program runs it."""

import os
import signal
import threading

import httpx
import pytest

from enginebay.conformance.openai_checks import check_stream
from enginebay.hookspecs.sink import SinkContext
from enginebay.hookspecs.transport import TransportContext
from enginebay.plugins.sinks import json as json_sink
from enginebay.plugins.sinks import sse as sse_sink
from enginebay.plugins.transports import http


@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGTERM] * 2])
def test_case_33_a_signal_drains_and_serve_returns(scripted, numbers):
    """A stream under way ends explicitly, serve returns, the old handlers are back."""
    client = scripted()
    client.hold.set()
    sinks = {
        "sse": sse_sink.enginebay_sink(sse_sink.Options(), SinkContext()),
        "json": json_sink.enginebay_sink(json_sink.Options(), SinkContext()),
    }
    context = TransportContext(clients={"m": client}, sinks=sinks, version="v")
    timeout = 600.0 if len(numbers) == 2 else 0.2
    transport = http.enginebay_transport(http.Options(port=0, shutdown_timeout=timeout), context)
    raw = []

    def use():
        transport.started.wait(10)
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": "x"}],
            "stream": True,
        }
        url = f"http://127.0.0.1:{transport.port}"
        with (
            httpx.Client(timeout=60, trust_env=False) as http_client,
            http_client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer,
        ):
            for number in numbers:
                os.kill(os.getpid(), number)
                while http_client.get(f"{url}/ready").json()["state"] == "ready":
                    continue  # a second signal of a kind is lost while the first waits
            raw.append(answer.read())

    before = signal.getsignal(signal.SIGTERM)
    user = threading.Thread(target=use)
    user.start()
    transport.serve()
    user.join(10)
    assert check_stream(raw[0], chat=True).error is not None
    assert signal.getsignal(signal.SIGTERM) == before
    client.close()
