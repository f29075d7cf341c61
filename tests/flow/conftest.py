"""A tiny model and engines over it, for whole runs."""

import threading
import time

import httpx
import openai
import pytest

from enginebay import LLM
from enginebay.config import load_stack
from enginebay.conformance.tiny import write_tiny
from enginebay.serving import serve


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A random Llama of two layers and 300 tokens."""
    return str(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny-llama"))


@pytest.fixture
def start(tiny):
    """Start an engine over the tiny model; closed when the test ends."""
    started = []

    def starter(stack="reference", model=tiny, **overrides):
        changes = {"engine.num_blocks": 256}
        changes |= {key.replace("__", "."): value for key, value in overrides.items()}
        started.append(LLM(model, stack=stack, overrides=changes))
        return started[-1]

    yield starter
    for llm in started:
        llm.close()
        assert_idle(llm)


def assert_idle(llm):
    """Everything came back: blocks, seats, waiting places, and the books agree."""
    engine = llm.assembly.engine
    snapshot = llm.client.snapshot()
    assert (snapshot.num_used_blocks, snapshot.num_running, snapshot.num_waiting) == (0, 0, 0)
    assert not engine.busy
    engine.allocator.check_integrity()
    engine.scheduler.check_integrity()


MESSAGES = [{"role": "user", "content": "Say something"}]
CALM = {"temperature": 0, "seed": 7}


class Served:
    """A server and its official client."""

    def __init__(self, model, stack=None, **http):
        changes = {f"options.transports.http.{name}": value for name, value in http.items()}
        changes |= {
            "engine.model": model,
            "engine.num_blocks": 256,
            "transports": ["http"],
            "options.transports.http.port": 0,
            **(stack or {}),
        }
        self.serving = serve(load_stack("reference", changes))
        self.transport = self.serving.transports[0]
        self.thread = threading.Thread(target=self.serving.wait)
        self.thread.start()
        assert self.transport.started.wait(20)
        self.url = f"http://127.0.0.1:{self.transport.port}"
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self.model = self.serving.assembly.name
        self.client = openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key="none",
            max_retries=0,
            http_client=httpx.Client(timeout=60, trust_env=False),
        )

    def chat(self, **fields):
        """A chat answer from the official client."""
        fields = {"model": self.model, "messages": MESSAGES, "max_tokens": 12} | CALM | fields
        return self.client.chat.completions.create(**fields)

    def complete(self, **fields):
        """A completion from the official client."""
        fields = {"model": self.model, "prompt": "Once upon", "max_tokens": 12} | CALM | fields
        return self.client.completions.create(**fields)

    def post(self, path, **fields):
        """A plain request."""
        return self.http.post(path, json={"model": self.model, **fields})

    def idle(self, seconds=10.0):
        """Everything came back."""
        client = self.serving.assembly.client
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            snapshot = client.snapshot()
            used = snapshot.num_running, snapshot.num_waiting, snapshot.num_used_blocks
            if used == (0, 0, 0) and self.transport._gateway.num_open == 0:
                return True
            time.sleep(0.005)
        return False

    def close(self):
        self.client.close()
        self.http.close()
        self.transport.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture(scope="session")
def server_of(tiny):
    """Starts a server over the tiny model: ``stack`` holds its keys, the rest are options
    of the transport. Whoever starts one closes it."""
    return lambda stack=None, **http: Served(tiny, stack, **http)
