"""Watch: turns what happens into timeline marks and observer records."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import structlog

from .hookspecs.observer import RequestRecord, StepRecord

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


class Watch:
    """Tells observers; one that raises is switched off and named."""

    def __init__(self, observers: Sequence_[tuple[str, Observer]], timeline: Timeline) -> None:
        self.observers = list(observers)
        self.timeline = timeline
        self.switched_off: list[str] = []
        self._waits: dict[int, str] = {}
        self._before: dict[int, tuple[float | None, int, float]] = {}
        """Of the step's sequences: last token's time, tokens generated, arrival."""
        self._gauges: tuple[int, int, int] | None = None
        """Running, waiting and used blocks as last told."""
        self._preemptions = 0
        self._recomputed = 0
        self._moved: Counter[str] = Counter()
        """Block operations since the last record, by kind."""
        self._evicted = 0

    def admitted(self, group: Group, now: float) -> None:
        """A request entered the queue."""
        self.timeline.mark(
            group.request.id, "admitted", now, num_prompt_tokens=len(group.prompt_ids)
        )

    def planned(self, build: StepBuilder, plan: StepPlan | None) -> None:
        """A step was planned: who starts, who computes what, who waits and why."""
        mark = self.timeline.mark
        for preemption in build.preemptions:
            self._preempted(preemption, build.now)
        reasons = {number: grant.reason for number, grant in build.denied.items()} | build.waits
        for sequence_id, reason in reasons.items():
            waiting = build.known(sequence_id)
            if waiting is not None and self._waits.get(sequence_id) != reason:
                self._waits[sequence_id] = reason
                mark(waiting.request_id, "waiting", build.now, reason=reason)
        if plan is None:
            return
        self._moved.update(op.kind for op in plan.block_ops)
        for start in plan.started:
            begun = build.known(start.sequence_id)
            if begun is not None:
                self._waits.pop(begun.id, None)
                mark(begun.request_id, "started", build.now, index=begun.index)
                if begun.num_cached:
                    mark(begun.request_id, "prefix_hit", build.now, num_tokens=begun.num_cached)
        self._before = {}
        for span in plan.spans:
            running = build.known(span.sequence_id)
            if running is not None:
                self._before[running.id] = (
                    running.last_token_at,
                    running.num_generated,
                    running.arrival,
                )
                mark(
                    running.request_id,
                    "scheduled",
                    build.now,
                    step=plan.step,
                    num_tokens=span.num_tokens,
                    index=running.index,
                )

    def committed(
        self, engine: Engine, plan: StepPlan, result: StepResult, began: float, now: float
    ) -> None:
        """A step was committed."""
        if not self.observers:
            return
        drawn = {output.sequence_id: len(output.token_ids) for output in result.outputs}
        intervals: list[float] = []
        firsts: list[float] = []
        prefill = decode = 0
        for span in plan.spans:
            before, generated, arrival = self._before.get(span.sequence_id, (None, 0, began))
            if generated and span.num_tokens == 1 + len(span.drafts):
                decode += span.num_tokens
            else:
                prefill += span.num_tokens
            if drawn.get(span.sequence_id):
                (firsts if before is None else intervals).append(now - (before or arrival))
        self._record(
            engine,
            step=plan.step,
            time=now,
            duration=now - began,
            executor_duration=result.duration,
            num_prefill_tokens=prefill,
            num_decode_tokens=decode,
            num_generated=sum(drawn.values()),
            num_sequences=len(plan.spans),
            token_intervals=tuple(intervals),
            first_token_delays=tuple(firsts),
        )

    def idle(self, engine: Engine) -> None:
        """No step follows for now: bring the gauges up to date if they moved since."""
        if self.observers and self._gauges != _gauges(engine):
            self._record(
                engine,
                step=-1,
                time=engine.clock(),
                duration=0.0,
                executor_duration=0.0,
                num_prefill_tokens=0,
                num_decode_tokens=0,
                num_generated=0,
                num_sequences=0,
            )

    def _record(self, engine: Engine, **facts: Any) -> None:
        self._gauges = running, waiting, used = _gauges(engine)
        record = StepRecord(
            num_running=running,
            num_waiting=waiting,
            num_used_blocks=used,
            num_blocks=engine.allocator.num_blocks,
            num_preemptions=self._preemptions,
            num_recomputed_tokens=self._recomputed,
            num_saved_blocks=self._moved["save"],
            num_loaded_blocks=self._moved["load"],
            num_evicted_blocks=engine.blocks.num_evicted - self._evicted,
            num_cached_blocks=engine.blocks.num_cached,
            oldest_wait=engine.intake.oldest_wait(facts["time"]),
            **facts,
        )
        self._preemptions = self._recomputed = 0
        self._moved.clear()
        self._evicted = engine.blocks.num_evicted
        self._tell(lambda observer: observer.on_step(record))

    def _preempted(self, preemption: Preemption, now: float) -> None:
        """Why, of whom, by whom, and how."""
        self._preemptions += 1
        sequence = preemption.sequence
        facts = {
            "by": preemption.by,
            "how": preemption.how,
            "reason": preemption.reason,
            "num_tokens": preemption.num_tokens,
        }
        self.timeline.mark(sequence.request_id, "preempted", now, index=sequence.index, **facts)
        log.info("preempted", request_id=sequence.request_id, index=sequence.index, **facts)

    def recomputed(self, count: int) -> None:
        """So many positions of a step had been in the cache before."""
        self._recomputed += count

    def ready(self, sequence: Sequence, count: int, now: float) -> None:
        """A step gave a sequence ``count`` tokens."""
        if count:
            mark = self.timeline.mark
            if sequence.num_generated == count:
                mark(sequence.request_id, "first_token", now, index=sequence.index)
            mark(sequence.request_id, "token_ready", now, index=sequence.index, count=count)

    def finished(self, sequence: Sequence, now: float) -> None:
        """A sequence left."""
        self._waits.pop(sequence.id, None)
        self.timeline.mark(
            sequence.request_id, "finished", now, index=sequence.index, reason=sequence.reason
        )

    def written(self, written: Written, count: int) -> None:
        """A transport wrote ``count`` more tokens of a choice."""
        self.timeline.mark(
            written.request_id, "token_written", written.time, index=written.index, count=count
        )

    def refused(self, refusal: Refusal) -> None:
        """Admission turned a request away."""
        self._tell(lambda observer: observer.on_refusal(refusal))

    def ended(self, group: Group, now: float) -> None:
        """A request left."""
        self.timeline.mark(group.request.id, "released", now)
        started = [s.started_at for s in group.sequences if s.started_at is not None]
        tokens = [s.first_token_at for s in group.sequences if s.first_token_at is not None]
        record = RequestRecord(
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
            error=group.error[0] if group.error else None,
        )
        self._tell(lambda observer: observer.on_request(record))

    def render(self) -> str:
        """What the observers show on ``/metrics``."""
        texts: list[str] = []
        self._tell(lambda observer: texts.append(observer.render()))
        return "".join(texts)

    def _tell(self, call: Callable[[Observer], None]) -> None:
        for name, observer in list(self.observers):
            try:
                call(observer)
            except Exception:
                log.exception("observer switched off", observer=name)
                self.switched_off.append(name)
                self.observers = [pair for pair in self.observers if pair[1] is not observer]


def _gauges(engine: Engine) -> tuple[int, int, int]:
    allocator = engine.allocator
    used = allocator.num_blocks - allocator.num_free
    return len(engine.roster.seats), engine.intake.num_waiting, used
