"""The meter: the engine's load as admission sees it, with the rate it finishes at."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from .hookspecs.admission import Load

if TYPE_CHECKING:
    from .engine import Engine

WINDOW: Final = 64
"""Finished requests over which the rate for ``retry_after`` is measured."""


class Meter:
    """Told of every finished request; asked at every admission."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        """Set once it is built: the intake that asks is built before it."""
        self._finished: deque[float] = deque(maxlen=WINDOW)

    def finished(self) -> None:
        """A request that was admitted has ended."""
        self._finished.append(time.monotonic())

    def load(self) -> Load:
        """The state now. Counts may change while they are read."""
        engine = self.engine
        if engine is None:
            msg = "the meter is asked before its engine was built"
            raise RuntimeError(msg)
        now = time.monotonic()
        span = now - self._finished[0] if self._finished else 0.0
        return Load(
            now=now,
            num_waiting=engine.intake.num_waiting,
            num_running=len(engine.roster.seats),
            waiting_tokens=engine.intake.waiting_tokens,
            num_free_blocks=engine.allocator.num_free,
            num_blocks=engine.allocator.num_blocks,
            requests_per_second=len(self._finished) / span if span > 0 else 0.0,
        )
