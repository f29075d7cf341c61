"""Who is inside and who still waits, as sums: every request asks for them."""

from __future__ import annotations

import heapq
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

SLACK: Final = 64
"""Entries of the queue of arrivals that may be out of date beside as many that are not."""


@dataclass(slots=True)
class _Wait:
    """Of one request: which of its choices have not started."""

    choices: int
    """One bit for each, lowest first."""
    tokens: int
    """Of its prompt."""
    arrival: float

    @property
    def num_choices(self) -> int:
        return self.choices.bit_count()


class Waiting:
    """Counts of requests between the door and their end. Thread-safe."""

    def __init__(self) -> None:
        self.num_choices = 0
        """Choices accepted or being tokenized that have not started."""
        self.num_tokens = 0
        """Prompt tokens of those, once for each choice."""
        self._lock = threading.RLock()  # the load is measured while it is held
        self._waits: dict[str, _Wait] = {}
        self._arrivals: list[tuple[float, str]] = []
        """A heap. Entries of requests that wait no longer stay until they are met."""
        self._held: set[str] = set()

    @property
    def num_held(self) -> int:
        """Requests that were taken in and have not ended."""
        return len(self._held)

    def hold(self, request_id: str) -> None:
        """Take a request in. :raises InvalidRequest: one of that id is under way"""
        with self._lock:
            if request_id in self._held:
                raise InvalidRequest(f"a request with id {request_id!r} is under way", "id")
            self._held.add(request_id)

    def drop(self, request_id: str) -> None:
        """A request was turned away or ended."""
        with self._lock:
            self._forget(request_id)
            self._held.discard(request_id)

    def started(self, request_id: str, index: int) -> None:
        """A choice got its seat, now or before, or left without one: it waits no longer."""
        with self._lock:
            wait = self._waits.get(request_id)
            if wait is None or not wait.choices >> index & 1:
                return
            wait.choices ^= 1 << index
            self._add(-1, wait.tokens)
            if not wait.choices:
                del self._waits[request_id]

    def oldest(self) -> float | None:
        """When the request came that has waited longest; ``None``: nobody waits."""
        with self._lock:
            while self._arrivals and not self._current(self._arrivals[0]):
                heapq.heappop(self._arrivals)
            return self._arrivals[0][0] if self._arrivals else None

    @contextmanager
    def asking(
        self, request_id: str, choices: int, tokens: int, arrival: float
    ) -> Iterator[list[bool]]:
        """Hold the lock while admission is asked: two callers can't both see the last
        free place. The request itself is left out of the counts meanwhile, and counted
        when the caller appends ``True`` to the list it gets.
        """
        with self._lock:
            before = self._forget(request_id)
            admitted: list[bool] = []
            yield admitted
            wait = _Wait((1 << choices) - 1, tokens, arrival) if admitted else before
            if wait is not None:
                self._remember(request_id, wait)

    def _remember(self, request_id: str, wait: _Wait) -> None:
        self._waits[request_id] = wait
        self._add(wait.num_choices, wait.tokens)
        if len(self._arrivals) >= 2 * len(self._waits) + SLACK:
            self._arrivals = sorted({entry for entry in self._arrivals if self._current(entry)})
        heapq.heappush(self._arrivals, (wait.arrival, request_id))

    def _forget(self, request_id: str) -> _Wait | None:
        wait = self._waits.pop(request_id, None)
        if wait is not None:
            self._add(-wait.num_choices, wait.tokens)
        return wait

    def _add(self, choices: int, tokens: int) -> None:
        self.num_choices += choices
        self.num_tokens += choices * tokens

    def _current(self, entry: tuple[float, str]) -> bool:
        arrival, request_id = entry
        wait = self._waits.get(request_id)
        return wait is not None and wait.arrival == arrival
