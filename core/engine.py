"""The engine: one step after another, no policy.

One thread, the step thread, runs ``run`` and owns the roster. Others reach it through
``submit``, ``cancel`` and ``acknowledge``, which leave a command in the inbox.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import structlog

from .build import StepBuilder
from .culprit import told
from .errors import EngineStopped
from .flow import EventBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from .blocks import Blocks
    from .drafting import Drafting
    from .flow import Accepted, FinishReason, Request, StepPlan, StepResult, Written
    from .hookspecs.allocator import Allocator
    from .hookspecs.client import Listener
    from .hookspecs.executor import Executor, Handle
    from .hookspecs.model import Limits
    from .hookspecs.scheduler import Scheduler
    from .intake import Intake
    from .meter import Meter
    from .rescue import Rescue
    from .roster import Roster
    from .sequence import Group
    from .watch import Watch

log = structlog.get_logger(__name__)


class Engine:
    """The step loop: receive, plan, execute, commit, emit."""

    def __init__(
        self,
        *,
        intake: Intake,
        roster: Roster,
        scheduler: Scheduler,
        blocks: Blocks,
        executor: Executor,
        rescue: Rescue,
        watch: Watch,
        meter: Meter,
        drafting: Drafting | None,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.intake = intake
        self.roster = roster
        self.scheduler = scheduler
        self.blocks = blocks
        self.executor = executor
        self.rescue = rescue
        self.watch = watch
        self.meter = meter
        self.drafting = drafting
        self.limits = limits
        self.clock = clock
        self.state = "starting"
        """``starting``, ``ready``, ``draining``, ``failed`` or ``closed``."""
        self.failure = ""
        self.validated = False
        """Whether the readiness probe matched a recorded answer."""
        self.info: dict[str, Any] = {}
        """What a snapshot tells of model, stack and memory."""
        self.thread: threading.Thread | None = None
        self._in_flight: deque[tuple[StepPlan, Handle, float]] = deque()
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._listeners: dict[int, Listener] = {}
        self._step = 0
        self._committed = -1
        """The last step whose results are in."""

    @property
    def allocator(self) -> Allocator:
        """Who owns which KV block."""
        return self.blocks.allocator

    @property
    def busy(self) -> bool:
        """Whether a request is anywhere between the door and its terminal event."""
        return self.intake.num_held > 0 or bool(self._inbox)

    # --- from any thread ---------------------------------------------------------

    def start(self) -> None:
        """Run the step loop in a thread of its own and take requests."""
        self.state = "ready"
        self.thread = threading.Thread(target=self.run, name="enginebay-step", daemon=True)
        self.thread.start()

    def attach(self, client: int, listener: Listener) -> None:
        """Deliver a client's events to ``listener``, on the step thread."""
        self._listeners[client] = listener

    def submit(self, request: Request, client: int) -> Accepted:
        """Admit a request and queue it. See ``EngineClient.submit``."""
        self._check_open()
        group = self.intake.accept(request, client)
        self._post(lambda: self.enter(group))
        if self.state in ("failed", "closed"):  # it stopped while this one was tokenized
            self.intake.release(request.id)
            self._check_open()
        return group.accepted()

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """End a request at the next step boundary."""
        self._post(lambda: self.roster.cut(request_id, reason))

    def acknowledge(self, written: tuple[Written, ...]) -> None:
        """Note tokens as written to their reader."""
        self._post(lambda: self.roster.written(written))

    def stop(self) -> None:
        """End ``run``; what is unfinished ends with an error event."""
        self._post(self._close)

    # --- the step thread ---------------------------------------------------------

    def run(self) -> None:
        """Step until stopped. A failure of the engine's own parts ends every request."""
        try:
            while self.state != "closed":
                if not self.step() and self.state != "closed":
                    self.watch.idle(self)
                    self._wake.wait(self.roster.pause())
                    self._wake.clear()
        except BaseException as error:  # a panic in a Rust library is no Exception
            self.fail(told(error))
            log.exception("engine failed")
        finally:
            self.executor.close()
            self.watch.close(self)

    def step(self) -> bool:
        """One turn. False: there was nothing to compute."""
        began = self.clock()
        self._receive(began)
        plan = self._plan(self.clock())
        if plan is not None:
            self._in_flight.append((plan, self.executor.execute(plan), began))
        if self._in_flight and (plan is None or len(self._in_flight) >= self.executor.depth):
            done, handle, began = self._in_flight.popleft()
            self._commit(done, self.executor.collect(handle), began)
        self._emit()
        return plan is not None or bool(self._in_flight)

    def enter(self, group: Group) -> None:
        """Take in an accepted request."""
        self.watch.admitted(group, self.clock())
        self.roster.enter(group)

    def _receive(self, now: float) -> None:
        while self._inbox:
            self._inbox.popleft()()
        self.roster.check_deadlines(now)
        self.roster.check_readers(now)

    def _plan(self, now: float) -> StepPlan | None:
        roster = self.roster
        if not roster.sequences:
            return None
        if self.drafting is not None:
            self.drafting.propose(roster.seats.values())
        build = StepBuilder(self._step, now, self.limits, self.blocks, roster)
        self.rescue.begin(build)
        self.scheduler.plan(build)
        self.rescue.settled(build)
        if build.empty and not self._in_flight:
            self.rescue.attempt(build)
        plan = build.plan()
        if plan is None:
            roster.owe(build.pending.removed, build.pending.ops)
        else:
            self._step += 1
        self.watch.planned(build, plan)
        for started in plan.started if plan else ():
            self.intake.started(started.request_id, started.index)
        for preemption in build.preemptions:
            roster.requeue(preemption.sequence)
        return plan

    def _commit(self, plan: StepPlan, result: StepResult, began: float) -> None:
        now = self.clock()
        self._committed = plan.step
        outputs = {output.sequence_id: output for output in result.outputs}
        for span in plan.spans:
            self.roster.advance(span, outputs.get(span.sequence_id), now)
        self.rescue.committed(plan, result)
        self.meter.committed(plan, result, began, now)
        self.watch.committed(self, plan, result, began, now)

    def _emit(self) -> None:
        for client, events in self.roster.take_events():
            listener = self._listeners.get(client)
            if listener is None:
                continue
            try:
                listener(EventBatch(step=self._committed, time=self.clock(), events=tuple(events)))
            except Exception:
                log.exception("a client's listener raised; its requests are cancelled")
                del self._listeners[client]
                self.roster.abandon(client)

    def _post(self, command: Callable[[], None]) -> None:
        if self.state in ("failed", "closed"):
            return  # every request has ended: there is nothing left to say to the engine
        self._inbox.append(command)
        self._wake.set()

    def _check_open(self) -> None:
        if self.state != "ready":
            raise EngineStopped(f"the engine is {self.state}; try another replica or later")

    def fail(self, message: str) -> None:
        """Its state is unknown: every request gets an error, none touches the parts."""
        self.state = "failed"
        self.failure = message
        self._end_all("the engine failed; this request can't be finished")
        self._emit()

    def _close(self) -> None:
        self.state = "closed"
        self._in_flight.clear()
        for sequence_id in self.roster.sequences:
            self.blocks.release(sequence_id)
        self._end_all("the server is shutting down")

    def _end_all(self, message: str) -> None:
        """End what has entered, and what was accepted while the end was coming."""
        while self._inbox:
            command = self._inbox.popleft()
            try:
                command()
            except Exception:
                log.exception("a command failed while the engine ended")
        self.roster.end_all(message)
