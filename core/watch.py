"""Watch: turns what happens into timeline marks and observer records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from .hookspecs.observer import Closing, RequestRecord
from .tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Sequence_

    from .build import Preemption, StepBuilder
    from .engine import Engine
    from .flow import Refusal, StepPlan, StepResult, Written
    from .hookspecs.observer import Observer
    from .sequence import Group, Sequence
    from .timeline import Timeline

log = structlog.get_logger(__name__)

_NO_WAIT: Final = frozenset({"done", "scheduled", "started"})
"""Denials that tell of a policy that asked twice, not of a sequence that waits."""
_UNREAD: Final = 4096
"""Ended requests whose readers may still report what they wrote."""


class Watch:
    """Tells observers; one that raises is switched off and named."""

    def __init__(self, observers: Sequence_[tuple[str, Observer]], timeline: Timeline) -> None:
        self.observers = list(observers)
        self.timeline = timeline
        self.switched_off: list[str] = []
        self._tally = Tally()
        self._waits: dict[int, str] = {}
        self._gauges: tuple[int, ...] | None = None
        """As last told; see ``_now``."""
        self._told_at = 0.0
        self._unread: dict[str, list[int]] = {}
        """Tokens written of each choice of the requests that ended."""

    def admitted(self, group: Group, now: float) -> None:
        """A request entered the queue."""
        self.timeline.mark(
            group.request.id, "admitted", now, num_prompt_tokens=len(group.prompt_ids)
        )

    def planned(self, build: StepBuilder, plan: StepPlan | None) -> None:
        """A step was planned: who starts, who computes what, who waits and why."""
        for preemption in build.preemptions:
            self._preempted(preemption, build.now)
        self._wait(build)
        if plan is None:
            return
        mark = self.timeline.mark
        for start in plan.started:
            begun = build.known(start.sequence_id)
            if begun is not None:
                self._tally.started(begun)
                mark(begun.request_id, "started", build.now, index=begun.index)
                if begun.num_cached:
                    facts = {"num_tokens": begun.num_cached, "index": begun.index}
                    mark(begun.request_id, "prefix_hit", build.now, **facts)
        known = build.known
        found = [known(span.sequence_id) for span in plan.spans]
        running = [sequence for sequence in found if sequence is not None]
        if self._waits:
            for sequence in running:
                self._waits.pop(sequence.id, None)
        work = [
            (sequence.request_id, sequence.index, span.num_tokens)
            for span, sequence in zip(plan.spans, running, strict=True)
        ]
        self.timeline.scheduled(plan.step, build.now, work)
        if self.observers:
            self._tally.planned(plan, running)

    def committed(
        self, engine: Engine, plan: StepPlan, result: StepResult, began: float, now: float
    ) -> None:
        """A step was committed."""
        self.timeline.step_ended(plan.step, now)
        if not self.observers:
            self._tally.clear()
            return
        self._tally.committed(plan, result)
        self._record(
            engine,
            step=plan.step,
            time=now,
            duration=now - began,
            executor_duration=result.duration,
        )

    def idle(self, engine: Engine) -> None:
        """No step follows for now: bring the gauges up to date if they moved since, and
        once a second while requests wait and grow older."""
        now = engine.clock()
        aged = engine.intake.num_waiting > 0 and now - self._told_at >= 1.0
        if self.observers and (aged or self._gauges != self._now(engine)):
            self._record(engine, step=-1, time=now, duration=0.0, executor_duration=0.0)

    def close(self, engine: Engine) -> None:
        """The engine ended: the gauges come to rest, and observers may flush."""
        self.idle(engine)
        self._tell(_close)

    def recomputed(self, count: int) -> None:
        """So many positions of a step had been in the cache before."""
        if count:
            self._tally.add(num_recomputed_tokens=count)

    def ready(self, sequence: Sequence, count: int, now: float) -> None:
        """A step gave a sequence ``count`` tokens, 1 or more."""
        request_id, index = sequence.request_id, sequence.index
        if sequence.num_generated == count:
            self.timeline.mark(request_id, "first_token", now, index=index)
        self.timeline.tokens("token_ready", request_id, index, now, count)
        if self.observers:
            self._tally.ready(sequence, count, now)

    def finished(self, sequence: Sequence, now: float) -> None:
        """A sequence left."""
        self._waits.pop(sequence.id, None)
        self._tally.finished(sequence)
        self.timeline.mark(
            sequence.request_id, "finished", now, index=sequence.index, reason=sequence.reason
        )

    def written(self, report: Written, before: int) -> int:
        """A transport told how much of a choice is written; ``before`` as told earlier.

        :return: tokens that are written: never fewer than before
        """
        count = report.num_tokens - before
        if count <= 0:
            return before
        self.timeline.tokens("token_written", report.request_id, report.index, report.time, count)
        return report.num_tokens

    def written_late(self, report: Written) -> None:
        """The same, of a request that has ended: its last tokens were still on their way."""
        told = self._unread.get(report.request_id, [])
        if 0 <= report.index < len(told):
            told[report.index] = self.written(report, told[report.index])

    def refused(self, refusal: Refusal) -> None:
        """Admission turned a request away."""
        self._tell(lambda observer: observer.on_refusal(refusal))

    def ended(self, group: Group, now: float, error: str | None = None) -> None:
        """A request left. :param error: the engine's own, when it was that"""
        request_id = group.request.id
        self.timeline.mark(request_id, "released", now)
        self._unread[request_id] = [s.num_written for s in group.sequences]
        if len(self._unread) > _UNREAD:
            del self._unread[next(iter(self._unread))]
        record = _record_of(group, now, error)
        self._tell(lambda observer: observer.on_request(record))

    def render(self) -> str:
        """What the observers show on ``/metrics``."""
        texts: list[str] = []
        self._tell(lambda observer: texts.append(observer.render()))
        return "".join(texts)

    def _wait(self, build: StepBuilder) -> None:
        """Note whose reason to wait is another than before."""
        if not build.denied and not build.waits:
            return
        reasons = {number: grant.reason for number, grant in build.denied.items()} | build.waits
        for sequence_id, reason in reasons.items():
            waiting = build.known(sequence_id)
            if waiting is None or reason in _NO_WAIT or self._waits.get(sequence_id) == reason:
                continue
            self._waits[sequence_id] = reason
            facts = {"reason": reason, "index": waiting.index}
            self.timeline.mark(waiting.request_id, "waiting", build.now, **facts)

    def _preempted(self, preemption: Preemption, now: float) -> None:
        """Why, of whom, by whom, and how."""
        self._tally.preempted(preemption)
        sequence = preemption.sequence
        facts = {
            "by": preemption.by,
            "how": preemption.how,
            "reason": preemption.reason,
            "num_tokens": preemption.num_tokens,
        }
        self.timeline.mark(sequence.request_id, "preempted", now, index=sequence.index, **facts)
        log.info("preempted", request_id=sequence.request_id, index=sequence.index, **facts)

    def _record(self, engine: Engine, **facts: Any) -> None:
        self._gauges, self._told_at = self._now(engine), facts["time"]
        record = self._tally.record(engine, **facts)
        self._tell(lambda observer: observer.on_step(record))

    def _now(self, engine: Engine) -> tuple[int, ...]:
        """Running and waiting, used, cached and swapped blocks."""
        used, cached, _ = self._tally.blocks(engine)
        running, waiting = len(engine.roster.seats), engine.intake.num_waiting
        return running, waiting, used, cached, engine.blocks.swap.num_used

    def _tell(self, call: Callable[[Observer], None]) -> None:
        for name, observer in list(self.observers):
            try:
                call(observer)
            except Exception:
                log.exception("observer switched off", observer=name)
                self.switched_off.append(name)
                self.observers = [pair for pair in self.observers if pair[1] is not observer]


def _close(observer: Observer) -> None:
    if isinstance(observer, Closing):
        observer.close()


def _record_of(group: Group, now: float, error: str | None) -> RequestRecord:
    started = [s.started_at for s in group.sequences if s.started_at is not None]
    tokens = [s.first_token_at for s in group.sequences if s.first_token_at is not None]
    if group.error is not None:
        error = group.error[0]
    return RequestRecord(
        request_id=group.request.id,
        tenant=group.request.tenant,
        usage=group.usage(),
        reasons=tuple(s.reason or "error" for s in group.sequences),
        n=group.sampling.n,
        max_tokens=group.max_tokens,
        arrival=group.arrival,
        started=min(started, default=None),
        first_token=min(tokens, default=None),
        finished=now,
        prefill_computed_tokens=sum(
            s.num_computed_ever - max(s.num_generated - 1, 0) for s in group.sequences
        ),
        recomputed_tokens=sum(s.num_recomputed for s in group.sequences),
        deadline=group.deadline,
        error=error,
        choice_tokens=tuple(s.num_generated for s in group.sequences),
    )
