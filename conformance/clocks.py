"""Clocks for an engine: one that stands until it is told, one that is the wall's."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds, and a way to be later."""

    def __call__(self) -> float: ...
    def wait_until(self, moment: float) -> None:
        """Return when it is ``moment`` or later."""


class VirtualClock:
    """Time that passes when somebody computes or sleeps, and costs nothing to wait for."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Seconds since the beginning."""
        return self.now

    def wait_until(self, moment: float) -> None:
        """It is ``moment`` at once; time never runs back."""
        self.now = max(self.now, moment)


class WallClock:
    """The engine's usual clock, for checks that need real threads."""

    def __call__(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wait_until(self, moment: float) -> None:
        """Sleep."""
        time.sleep(max(0.0, moment - time.monotonic()))
