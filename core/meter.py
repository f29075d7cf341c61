"""The meter: how fast the engine is of late, and its load as admission sees it.

Rates are over the time that the engine was busy, so a quiet hour does not make it slow.
Of that, the time in which somebody waited is measured by itself: an engine that has
little to do finishes little, which says nothing of how fast a queue would move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .hookspecs.admission import Load
from .pace import Pace

if TYPE_CHECKING:
    from .engine import Engine
    from .flow import StepPlan, StepResult

PREFILL: Final = 16
"""Positions a step must compute to tell what a position costs: fewer are mostly launch."""


class Meter:
    """Told of every step and every finished request; asked at every admission."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        """Set once it is built: the intake that asks is built before it."""
        self.seconds_per_token = 0.0
        """Executor seconds for each position of a large step; 0 when unknown."""
        self._committed_at = 0.0
        self._busy = Pace()
        self._loaded = Pace()
        """Of the steps beside which somebody waited."""
        self._ended = 0
        """Requests that ended since the last step."""

    def committed(self, plan: StepPlan, result: StepResult, began: float, now: float) -> None:
        """A step was committed; it began when it was planned."""
        generated = sum(len(output.token_ids) for output in result.outputs)
        seconds = now - max(began, self._committed_at)  # several may have been in flight
        self._committed_at = now
        ended, self._ended = self._ended, 0
        prompt = max(plan.num_tokens - generated, 0)
        self._busy.step(seconds, prompt, generated, ended)
        if self._asked().intake.num_waiting:
            self._loaded.step(seconds, prompt, generated, ended)
        if plan.num_tokens >= PREFILL:
            cost = result.duration / plan.num_tokens
            known = self.seconds_per_token
            self.seconds_per_token = 0.8 * known + 0.2 * cost if known else cost

    def finished(self) -> None:
        """A request that had run has ended."""
        self._ended += 1

    def load(self) -> Load:
        """The state now. Counts may change while they are read."""
        engine = self._asked()
        now = engine.clock()
        pace = self._loaded if self._loaded.known else self._busy
        return Load(
            now=now,
            num_waiting=engine.intake.num_waiting,
            num_running=len(engine.roster.seats),
            waiting_tokens=engine.intake.waiting_tokens,
            num_free_blocks=engine.allocator.num_free,
            num_blocks=engine.allocator.num_blocks,
            requests_per_second=pace.requests_per_second,
            num_seats=engine.limits.max_sequences,
            oldest_wait=engine.intake.oldest_wait(now),
            prompt_tokens_per_second=pace.prompt_tokens_per_second,
            generated_tokens_per_second=pace.generated_tokens_per_second,
        )

    def _asked(self) -> Engine:
        if self.engine is None:
            msg = "the meter is asked before its engine was built"
            raise RuntimeError(msg)
        return self.engine
