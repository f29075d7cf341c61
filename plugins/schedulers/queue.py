"""The waiting queue that policies share: ordered by a key, cheap to add to and leave."""

import heapq
import itertools
from collections.abc import Callable
from typing import Any

from enginebay.errors import IntegrityError
from enginebay.hookspecs.scheduler import SequenceView

Key = Callable[[SequenceView], Any]


def by_arrival(sequence: SequenceView) -> tuple[float, int]:
    """First come, first served; a preempted sequence comes back to its old place."""
    return sequence.arrival, sequence.id


class WaitingQueue:
    """A heap whose leavers are skipped when they come up, so leaving is cheap too.

    A sequence's key is taken when it is added and must not change while it waits.
    """

    def __init__(self, key: Key = by_arrival) -> None:
        self._key = key
        self._heap: list[tuple[Any, int, int]] = []
        self._waiting: dict[int, tuple[int, SequenceView]] = {}
        """By sequence id: the number of its valid place, and the sequence."""
        self._places = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._waiting

    def add(self, sequence: SequenceView) -> None:
        """Queue a sequence, once."""
        place = next(self._places)
        self._waiting[sequence.id] = (place, sequence)
        heapq.heappush(self._heap, (self._key(sequence), place, sequence.id))

    def remove(self, sequence_id: int) -> None:
        """Forget a sequence; unknown ids are ignored."""
        self._waiting.pop(sequence_id, None)
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = [entry for entry in self._heap if self._stands(entry)]
            heapq.heapify(self._heap)

    def first(self) -> SequenceView | None:
        """Who is next."""
        while self._heap and not self._stands(self._heap[0]):
            heapq.heappop(self._heap)
        return self._waiting[self._heap[0][2]][1] if self._heap else None

    def check_integrity(self) -> None:
        """Every waiting sequence stands in the heap."""
        standing = {entry[2] for entry in self._heap if self._stands(entry)}
        lost = self._waiting.keys() - standing
        if lost:
            msg = f"waiting sequences {sorted(lost)[:8]} are not in the queue"
            raise IntegrityError(msg)

    def _stands(self, entry: tuple[Any, int, int]) -> bool:
        waiting = self._waiting.get(entry[2])
        return waiting is not None and waiting[0] == entry[1]


class Queued:
    """The part of a policy that one waiting queue answers for."""

    _queue: WaitingQueue

    def add(self, sequence: SequenceView) -> None:
        """Queue a sequence by the policy's key; a preempted one has its old place again."""
        self._queue.add(sequence)

    def remove(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self._queue.remove(sequence_id)

    def num_waiting(self) -> int:
        """Sequences not started."""
        return len(self._queue)

    def check_integrity(self) -> None:
        """Every waiting sequence stands in the queue."""
        self._queue.check_integrity()
