"""Pace: how much the engine gets done in a second of work, over a window of late."""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW: Final = 256
"""Steps over which token rates are measured."""
ENDINGS: Final = 64
"""Steps in which requests ended, over which the rate of those is measured."""
ENOUGH: Final = 8
"""Of them, from which on the rate is more than luck."""


class Rate:
    """An amount a second, over the last so many entries. One thread adds, any may read.

    The window begins where the entry before its first one ended, so a whole batch that
    ends in one step counts with all the time that it took.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._entries: deque[tuple[float, int]] = deque()
        self._since = 0.0
        self._total = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, at: float, amount: int) -> None:
        """``amount`` came about between the last entry and second ``at``."""
        self._entries.append((at, amount))
        self._total += amount
        if len(self._entries) > self._window:
            self._since, gone = self._entries.popleft()
            self._total -= gone

    def per_second(self, now: float) -> float:
        """0 when nothing is known."""
        seconds = now - self._since
        return self._total / seconds if seconds > 0 else 0.0


class Pace:
    """Rates over the seconds that were spent in some kind of step."""

    def __init__(self) -> None:
        self._seconds = 0.0
        """Spent in such steps: the clock of the rates."""
        self._prompt = Rate(WINDOW)
        self._generated = Rate(WINDOW)
        self._ended = Rate(ENDINGS)

    @property
    def known(self) -> bool:
        """Whether enough has been seen to go by."""
        return len(self._ended) >= ENOUGH

    @property
    def prompt_tokens_per_second(self) -> float:
        """Computed: what a cache held does not count."""
        return self._prompt.per_second(self._seconds)

    @property
    def generated_tokens_per_second(self) -> float:
        """Of all sequences together."""
        return self._generated.per_second(self._seconds)

    @property
    def requests_per_second(self) -> float:
        """Those that ended after they had run."""
        return self._ended.per_second(self._seconds)

    def step(self, seconds: float, prompt: int, generated: int, ended: int) -> None:
        """A step was committed.

        :param seconds: that it took
        :param prompt: tokens computed that were not generated before
        :param ended: requests that ended since the last step
        """
        self._seconds += seconds
        self._prompt.add(self._seconds, prompt)
        self._generated.add(self._seconds, generated)
        if ended:
            self._ended.add(self._seconds, ended)
