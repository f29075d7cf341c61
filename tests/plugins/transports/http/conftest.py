"""A scripted engine behind the HTTP transport, over real sockets."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from enginebay.errors import EngineStopped
from enginebay.flow import (
    Accepted,
    Alternative,
    ChatPrompt,
    ChoiceFinished,
    Delta,
    Ended,
    EventBatch,
    Failure,
    PromptScored,
    TokenLogprob,
    Usage,
)
from enginebay.hookspecs.client import Health, Snapshot
from enginebay.hookspecs.sink import SinkContext
from enginebay.hookspecs.transport import TransportContext
from enginebay.plugins.sinks import json as json_sink
from enginebay.plugins.sinks import sse as sse_sink
from enginebay.plugins.transports import http


class Running:
    """One choice of a request in the scripted engine."""

    def __init__(self, request, index, limit):
        self.request, self.index, self.limit = request, index, limit
        self.num_generated = self.num_written = 0
        self.done = False


class ScriptedClient:
    """An ``EngineClient`` whose thread says ``w0 w1 ...``, one word a step.

    The prompt decides nothing; tests set the knobs: ``on_submit`` is called first and may
    raise, ``hold`` stops the steps, ``fail_after`` ends a request with an error.
    """

    max_words = 8

    def __init__(self):
        self.on_submit = lambda request: None
        self.fail_after = None
        self.hold = threading.Event()
        self.state = "ready"
        self.submitted, self.cancelled, self.acknowledged = [], [], []
        self.batches = 0
        self.events_sent = 0
        self._running = {}
        self._listener = None
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    # --- the contract

    def submit(self, request):
        self.on_submit(request)
        if self.state != "ready":
            raise EngineStopped(f"the engine is {self.state}")
        limit = request.sampling.max_tokens
        limit = self.max_words if limit is None else limit
        with self._lock:
            self.submitted.append(request)
            self._running[request.id] = [
                Running(request, i, limit) for i in range(request.sampling.n)
            ]
        return Accepted(
            request_id=request.id,
            num_prompt_tokens=3,
            seed=1,
            max_tokens=limit,
            prompt_token_ids=(7, 8, 9),
        )

    def cancel(self, request_id, reason="cancelled"):
        with self._lock:
            self.cancelled.append((request_id, reason))
            choices = self._running.pop(request_id, ())
            events = [
                ChoiceFinished(request_id=request_id, index=c.index, reason=reason)
                for c in choices
                if not c.done
            ]
            if choices:
                self._send([*events, self._ended(request_id, choices)])

    def events(self, listener):
        self._listener = listener

    def acknowledge(self, written):
        with self._lock:
            self.acknowledged.append(written)
            for report in written:
                choices = self._running.get(report.request_id)
                if choices:
                    choices[report.index].num_written = report.num_tokens

    def snapshot(self, request_id=None):
        return Snapshot(
            num_running=len(self._running),
            num_waiting=0,
            num_used_blocks=0,
            num_blocks=8,
            info={"limits": {"max_model_len": 64}},
            metrics="# HELP steps Steps.\n# TYPE steps counter\nsteps 1\n",
        )

    def health(self):
        alive = self.state not in ("failed", "closed")
        return Health(state=self.state, alive=alive, ready=self.state == "ready", validated=True)

    def drain(self, timeout):
        self.state = "draining"
        until = time.monotonic() + timeout
        while self._running and time.monotonic() < until:
            time.sleep(0.005)
        with self._lock:
            finished = not self._running
            self._end_all("the server is shutting down")
        self.state = "closed"
        self._stop.set()
        return finished

    # --- the script

    def die(self, *, quietly=False):
        """The engine fails; quietly: without telling its requests."""
        with self._lock:
            self.state = "failed"
            if not quietly:
                self._end_all("the engine failed; this request can't be finished")

    def idle(self, seconds=5.0):
        """Wait until nothing runs."""
        until = time.monotonic() + seconds
        while self._running and time.monotonic() < until:
            time.sleep(0.002)
        return not self._running

    def close(self):
        self._stop.set()
        self._thread.join(5)

    def _run(self):
        while not self._stop.is_set():
            if self.hold.is_set() or not self._running or self.state == "failed":
                time.sleep(0.001)
                continue
            with self._lock:
                events = [e for i, cs in list(self._running.items()) for e in self._step(i, cs)]
                self._send(events)
            time.sleep(0.0005)

    def _step(self, request_id, choices):
        events = []
        for choice in choices:
            events += self._word(request_id, choice)
        if self.fail_after is not None and choices[0].num_generated >= self.fail_after:
            events += [
                ChoiceFinished(request_id=request_id, index=c.index, reason="error")
                for c in choices
                if not c.done
            ]
            self._running.pop(request_id)
            return [*events, self._ended(request_id, choices, "a plugin failed on this request")]
        if all(c.done for c in choices):
            self._running.pop(request_id)
            events.append(self._ended(request_id, choices))
        return events

    def _word(self, request_id, choice):
        sampling, window = choice.request.sampling, choice.request.window
        if choice.done or (window and choice.num_generated - choice.num_written >= window):
            return []
        events = []
        if choice.num_generated == 0 and choice.index == 0 and sampling.prompt_logprobs is not None:
            scores = [self._entry(w, sampling.prompt_logprobs) for w in (" b", " c")]
            events.append(
                PromptScored(
                    request_id=request_id,
                    logprobs=(None, *scores),
                    token_ids=(7, 8, 9),
                    first=b"a",
                )
            )
        if choice.num_generated < choice.limit:
            word = f"w{choice.num_generated} "
            logprobs = sampling.logprobs
            entries = None if logprobs is None else (self._entry(word, logprobs),)
            choice.num_generated += 1
            events.append(
                Delta(
                    request_id=request_id,
                    index=choice.index,
                    token_ids=(choice.num_generated,),
                    content=word,
                    logprobs=entries,
                    num_generated=choice.num_generated,
                )
            )
        if choice.num_generated >= choice.limit:
            choice.done = True
            events.append(
                ChoiceFinished(request_id=request_id, index=choice.index, reason="length")
            )
        return events

    def _entry(self, word, num_top):
        def alternative(text, logprob):
            return Alternative(token_id=1, logprob=logprob, text=text, data=text.encode())

        top = [alternative(word, -0.1)] + [alternative(f"x{i}", -1.0 - i) for i in range(num_top)]
        return TokenLogprob(token=top[0], top=tuple(top[:num_top]))

    def _end_all(self, message):
        for request_id, choices in list(self._running.items()):
            self._send([self._ended(request_id, choices, message, "engine")])
        self._running.clear()

    def _ended(self, request_id, choices, error="", kind="request"):
        usage = Usage(prompt_tokens=3, completion_tokens=sum(c.num_generated for c in choices))
        failure = Failure(message=error, kind=kind) if error else None
        return Ended(request_id=request_id, usage=usage, error=failure)

    def _send(self, events):
        if events and self._listener is not None:
            self.batches += 1
            self.events_sent += len(events)
            batch = EventBatch(step=self.batches, time=time.monotonic(), events=tuple(events))
            self._listener(batch)


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
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields
        return self.http.post("/v1/chat/completions", json=body)

    def complete(self, **fields):
        """POST a completion request."""
        return self.http.post("/v1/completions", json={"model": "m", "prompt": "hi"} | fields)

    @contextlib.contextmanager
    def streaming(self, **fields) -> Iterator[httpx.Response]:
        """A chat stream."""
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        with self.http.stream("POST", "/v1/chat/completions", json=body | fields) as response:
            yield response

    def alive(self):
        """A plain request answers as ever, and nothing is left behind."""
        answer = self.chat()
        assert answer.status_code == 200, answer.text
        words = json.loads(answer.text)["choices"][0]["message"]["content"].split()
        assert words == [f"w{i}" for i in range(8)]
        assert self.client.idle()
        until = time.monotonic() + 5
        while self.transport._gateway.num_open and time.monotonic() < until:
            time.sleep(0.002)
        assert self.transport._gateway.num_open == 0

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


@pytest.fixture
def start():
    """Starts servers with options of their own."""
    servers = []

    def start(clients=None, **options):
        servers.append(Server(clients or {"m": ScriptedClient()}, **options))
        return servers[-1]

    yield start
    for running in servers:
        running.close()


@pytest.fixture
def scripted():
    """A new scripted engine."""
    return ScriptedClient


@pytest.fixture
def chat_prompt():
    """The type of chat prompts."""
    return ChatPrompt
