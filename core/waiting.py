"""Who is inside and who still waits, as sums: every request asks for them."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator


class Waiting:
    """Counts of requests between the door and their end. Thread-safe."""

    def __init__(self) -> None:
        self.num_choices = 0
        """Choices accepted or being tokenized that have not started."""
        self.num_tokens = 0
        """Prompt tokens of those, once for each choice."""
        self._lock = threading.RLock()  # the load is measured while it is held
        self._sizes: dict[str, tuple[int, int]] = {}
        self._since: dict[str, float] = {}
        """When each waiting request arrived, in that order as far as threads allow."""
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
            self._count(request_id, 0, 0)
            self._held.discard(request_id)

    def started(self, request_id: str) -> None:
        """A request's first choice got its seat: it waits no longer."""
        with self._lock:
            self._count(request_id, 0, 0)

    def oldest(self) -> float | None:
        """When the request came that has waited longest; ``None``: nobody waits."""
        with self._lock:
            return next(iter(self._since.values()), None)

    @contextmanager
    def asking(
        self, request_id: str, choices: int, tokens: int, arrival: float
    ) -> Iterator[list[bool]]:
        """Hold the lock while admission is asked: two callers can't both see the last
        free place. The request itself is left out of the counts meanwhile, and counted
        when the caller appends ``True`` to the list it gets.
        """
        with self._lock:
            before = self._sizes.get(request_id, (0, 0))
            self._count(request_id, 0, 0)
            admitted: list[bool] = []
            yield admitted
            self._count(request_id, *((choices, tokens) if admitted else before))
            if request_id in self._sizes:
                self._since.setdefault(request_id, arrival)

    def _count(self, request_id: str, choices: int, tokens: int) -> None:
        before, size = self._sizes.pop(request_id, (0, 0))
        self.num_choices += choices - before
        self.num_tokens += choices * tokens - before * size
        if choices:
            self._sizes[request_id] = (choices, tokens)
        else:
            self._since.pop(request_id, None)
