"""An ``EngineClient`` without an engine: for judging transports, faults included.

Its thread says ``w0 w1 w2 ...``, one word a choice and step. The prompt decides nothing;
a test sets the knobs: ``on_submit`` is called first and may raise or wait, ``hold`` stops
the steps, ``fail_after`` ends a request with an error, ``die`` ends the engine.
"""

import threading
import time
from collections.abc import Callable

from enginebay.errors import EngineStopped
from enginebay.flow import (
    Accepted,
    Ended,
    Event,
    EventBatch,
    Failure,
    FinishReason,
    Request,
    Usage,
    Written,
)
from enginebay.hookspecs.client import Health, Listener, Snapshot

from .scripted_choice import PROMPT_IDS, ScriptedChoice

STEP_SECONDS = 0.0005


class ScriptedClient:
    """Says words until it is told otherwise. ``submitted``, ``cancelled`` and
    ``acknowledged`` keep what it was told."""

    def __init__(self) -> None:
        self.on_submit: Callable[[Request], object] = lambda request: None
        self.fail_after: int | None = None
        self.hold = threading.Event()
        self.state = "ready"
        self.submitted: list[Request] = []
        self.cancelled: list[tuple[str, str]] = []
        self.acknowledged: list[tuple[Written, ...]] = []
        self.num_batches = 0
        self.num_events = 0
        self._running: dict[str, list[ScriptedChoice]] = {}
        self._listener: Listener | None = None
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scripted", daemon=True)
        self._thread.start()

    # --- the contract ------------------------------------------------------------

    def submit(self, request: Request) -> Accepted:
        """Take a request, unless ``on_submit`` raises."""
        self.on_submit(request)
        if self.state != "ready":
            raise EngineStopped(f"the engine is {self.state}")
        choices = [ScriptedChoice(request, index) for index in range(request.sampling.n)]
        with self._lock:
            self.submitted.append(request)
            self._running[request.id] = choices
        return Accepted(
            request_id=request.id,
            num_prompt_tokens=len(PROMPT_IDS),
            seed=1,
            max_tokens=choices[0].limit if choices else 0,
            prompt_token_ids=PROMPT_IDS,
        )

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """End a request."""
        with self._lock:
            self.cancelled.append((request_id, reason))
            choices = self._running.pop(request_id, None)
            if choices is not None:
                self._end(request_id, choices, reason)

    def events(self, listener: Listener) -> None:
        """Deliver events there."""
        self._listener = listener

    def acknowledge(self, written: tuple[Written, ...]) -> None:
        """Note tokens as written."""
        with self._lock:
            self.acknowledged.append(written)
            for report in written:
                for choice in self._running.get(report.request_id, ())[report.index :][:1]:
                    choice.num_written = report.num_tokens

    def snapshot(self, request_id: str | None = None) -> Snapshot:
        """What runs, a limit, and one metric."""
        return Snapshot(
            num_running=len(self._running),
            num_waiting=0,
            num_used_blocks=0,
            num_blocks=8,
            info={"limits": {"max_model_len": 64}},
            metrics="# HELP steps Steps.\n# TYPE steps counter\nsteps 1\n",
        )

    def health(self) -> Health:
        """By ``state``."""
        alive = self.state not in ("failed", "closed")
        return Health(state=self.state, alive=alive, ready=self.state == "ready", validated=True)

    def drain(self, timeout: float) -> bool:
        """Wait for what runs, then end the rest with an error."""
        self.state = "draining"
        finished = self.idle(timeout)
        self._end_all("the server is shutting down")
        self.state = "closed"
        self._stop.set()
        return finished

    # --- the knobs ---------------------------------------------------------------

    def die(self, *, quietly: bool = False) -> None:
        """The engine fails; quietly: without telling its requests."""
        with self._lock:
            self.state = "failed"
            if not quietly:
                self._end_all("the engine failed; this request can't be finished")

    def idle(self, seconds: float = 5.0) -> bool:
        """Whether everything ended within so many seconds."""
        until = time.monotonic() + seconds
        while self._running and time.monotonic() < until:
            time.sleep(0.002)
        return not self._running

    def close(self) -> None:
        """End its thread."""
        self._stop.set()
        self._thread.join(5)

    # --- the script --------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(STEP_SECONDS):
            if self.hold.is_set() or self.state == "failed":
                continue
            with self._lock:
                events: list[Event] = []
                for request_id, choices in list(self._running.items()):
                    events += self._step(request_id, choices)
                self._send(events)

    def _step(self, request_id: str, choices: list[ScriptedChoice]) -> list[Event]:
        events = [event for choice in choices for event in choice.step()]
        failed = self.fail_after is not None and choices[0].num_generated >= self.fail_after
        if failed:
            events += [choice.finish("error") for choice in choices if not choice.done]
        if failed or all(choice.done for choice in choices):
            del self._running[request_id]
            failure = Failure(message="a plugin failed on this request") if failed else None
            events.append(_ended(request_id, choices, failure))
        return events

    def _end(
        self,
        request_id: str,
        choices: list[ScriptedChoice],
        reason: FinishReason,
        message: str = "",
    ) -> None:
        failure = Failure(message=message, kind="engine") if message else None
        finishes = [choice.finish(reason) for choice in choices if not choice.done]
        self._send([*finishes, _ended(request_id, choices, failure)])

    def _end_all(self, message: str) -> None:
        with self._lock:
            running, self._running = self._running, {}
            for request_id, choices in running.items():
                self._end(request_id, choices, "error", message)

    def _send(self, events: list[Event]) -> None:
        if events and self._listener is not None:
            self.num_batches += 1
            self.num_events += len(events)
            now = time.monotonic()
            self._listener(EventBatch(step=self.num_batches, time=now, events=tuple(events)))


def _ended(request_id: str, choices: list[ScriptedChoice], failure: Failure | None) -> Ended:
    count = sum(choice.num_generated for choice in choices)
    usage = Usage(prompt_tokens=len(PROMPT_IDS), completion_tokens=count)
    return Ended(request_id=request_id, usage=usage, error=failure)
