"""The meter: how fast the engine is of late, and its load as admission sees it.

Rates are over the time that the engine was busy, so a quiet hour does not make it slow.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from .hookspecs.admission import Load

if TYPE_CHECKING:
    from .engine import Engine
    from .flow import StepPlan, StepResult

WINDOW: Final = 256
"""Steps over which token rates are measured."""
ENDINGS: Final = 64
"""Finished requests over which their rate is measured."""
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
        self._busy = 0.0
        """Seconds spent in steps, the clock of all rates."""
        self._steps: deque[tuple[float, int, int]] = deque(maxlen=WINDOW)
        self._ended: deque[float] = deque(maxlen=ENDINGS)

    def committed(self, plan: StepPlan, result: StepResult, began: float, now: float) -> None:
        """A step was committed; it began when it was planned."""
        generated = sum(len(output.token_ids) for output in result.outputs)
        self._steps.append((self._busy, plan.num_tokens - generated, generated))
        self._busy += now - max(began, self._committed_at)  # several may have been in flight
        self._committed_at = now
        if plan.num_tokens >= PREFILL:
            cost = result.duration / plan.num_tokens
            known = self.seconds_per_token
            self.seconds_per_token = 0.8 * known + 0.2 * cost if known else cost

    def finished(self) -> None:
        """A request that was admitted has ended."""
        self._ended.append(self._busy)

    def load(self) -> Load:
        """The state now. Counts may change while they are read."""
        engine = self.engine
        if engine is None:
            msg = "the meter is asked before its engine was built"
            raise RuntimeError(msg)
        now = engine.clock()
        steps = tuple(self._steps)
        seconds = self._busy - steps[0][0] if steps else 0.0
        return Load(
            now=now,
            num_waiting=engine.intake.num_waiting,
            num_running=len(engine.roster.seats),
            waiting_tokens=engine.intake.waiting_tokens,
            num_free_blocks=engine.allocator.num_free,
            num_blocks=engine.allocator.num_blocks,
            requests_per_second=self._endings_per_second(),
            num_seats=engine.limits.max_sequences,
            oldest_wait=engine.intake.oldest_wait(now),
            prompt_tokens_per_second=_rate(sum(step[1] for step in steps), seconds),
            generated_tokens_per_second=_rate(sum(step[2] for step in steps), seconds),
        )

    def _endings_per_second(self) -> float:
        ended = tuple(self._ended)
        return _rate(len(ended), self._busy - ended[0]) if ended else 0.0


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
