"""Lanes: sequences by tenant, the tenant with the least counter first.

Counters rise while a tenant stands in a heap; its place is brought up to date when it
comes to the top, so neither a rise nor the number of tenants costs anything.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from enginebay.errors import IntegrityError
from enginebay.hookspecs.scheduler import SequenceView

from .queue import WaitingQueue, by_arrival
from .service import Tenant

Owner = Callable[[int], Tenant]
"""The tenant of a known sequence, by its id."""
Rank = tuple[float, float, int]


def rank(tenant: Tenant, sequence: SequenceView) -> Rank:
    """Least counter first; within a tenant and between equals by arrival."""
    return tenant.counter, sequence.arrival, sequence.id


class WaitingLanes:
    """A queue a tenant."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._lanes: dict[Tenant, WaitingQueue] = {}
        """Of the tenants that wait."""
        self._heap: list[tuple[Rank, int, Tenant]] = []
        self._places = itertools.count()
        self._valid: dict[Tenant, int] = {}
        """The number of each waiting tenant's valid place."""
        self._last: Tenant | None = None
        self._waiting: set[int] = set()
        """Ids of what waits."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, tenant: Tenant) -> bool:
        return tenant in self._lanes

    def holds(self, sequence: SequenceView) -> bool:
        """Whether a sequence waits, known to ``owner`` or not."""
        return sequence.id in self._waiting

    def level(self) -> float:
        """What a tenant that begins to wait is lifted to: the least counter of those that
        wait, or that of the last that did."""
        self.first()
        if self._heap:
            return self._heap[0][2].counter
        return self._last.counter if self._last else 0.0

    def add(self, sequence: SequenceView) -> None:
        """Queue a sequence behind its tenant's others."""
        tenant = self._owner(sequence.id)
        lane = self._lanes.setdefault(tenant, WaitingQueue())
        before = lane.first()
        lane.add(sequence)
        self._waiting.add(sequence.id)
        if before is None or by_arrival(sequence) < by_arrival(before):
            self._place(tenant, sequence)

    def remove(self, sequence_id: int) -> None:
        """Forget a sequence; one that does not wait is ignored."""
        if sequence_id not in self._waiting:
            return
        tenant = self._owner(sequence_id)
        lane = self._lanes[tenant]
        lane.remove(sequence_id)
        self._waiting.remove(sequence_id)
        if not lane:
            del self._lanes[tenant], self._valid[tenant]
            self._last = tenant
        if len(self._heap) > 2 * len(self._lanes) + 64:
            self._heap = [entry for entry in self._heap if self._stands(entry)]
            heapq.heapify(self._heap)

    def first(self) -> SequenceView | None:
        """The oldest sequence of the tenant with the least counter."""
        while self._heap:
            entry = self._heap[0]
            tenant = entry[2]
            if not self._stands(entry):
                heapq.heappop(self._heap)
                continue
            head = self._lanes[tenant].first()
            if head is not None and rank(tenant, head) == entry[0]:
                return head
            heapq.heappop(self._heap)
            if head is not None:
                self._place(tenant, head)
        return None

    def check_integrity(self) -> None:
        """Every tenant that waits has its place, and every lane is whole."""
        standing = {entry[2] for entry in self._heap if self._stands(entry)}
        counted = sum(len(lane) for lane in self._lanes.values())
        if standing != self._lanes.keys() or counted != len(self._waiting):
            msg = f"{len(standing)} of {len(self._lanes)} tenants stand in the queue"
            raise IntegrityError(msg)
        for lane in self._lanes.values():
            lane.check_integrity()

    def _place(self, tenant: Tenant, head: SequenceView) -> None:
        place = self._valid[tenant] = next(self._places)
        heapq.heappush(self._heap, (rank(tenant, head), place, tenant))

    def _stands(self, entry: tuple[Rank, int, Tenant]) -> bool:
        return self._valid.get(entry[2]) == entry[1]


class RunningLanes:
    """What runs in one step; see ``Line``."""

    def __init__(self, running: Iterable[SequenceView], owner: Owner) -> None:
        self._owner = owner
        self._lanes: dict[Tenant, deque[SequenceView]] = {}
        self._length = 0
        for sequence in sorted(running, key=by_arrival):
            self._lanes.setdefault(owner(sequence.id), deque()).append(sequence)
            self._length += 1
        self._heap = [
            (rank(tenant, lane[0]), place, tenant, lane)
            for place, (tenant, lane) in enumerate(self._lanes.items())
        ]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return self._length

    def first(self) -> tuple[Rank, SequenceView] | None:
        """The oldest sequence of the tenant with the least counter."""
        heap = self._heap
        while heap:
            known, place, tenant, lane = heap[0]
            if not lane:
                heapq.heappop(heap)
                continue
            head = lane[0]
            if known[0] == tenant.counter and known[2] == head.id:
                return known, head
            heapq.heapreplace(heap, (rank(tenant, head), place, tenant, lane))
        return None

    def pop(self) -> None:
        """The first has its turn."""
        self._heap[0][3].popleft()
        self._length -= 1

    def from_end(self) -> Iterator[SequenceView]:
        """The tenant that is farthest ahead first, its youngest first."""
        for tenant in sorted(self._lanes, key=lambda tenant: tenant.counter, reverse=True):
            yield from reversed(self._lanes[tenant])

    def leave(self, sequence: SequenceView) -> None:
        """It gave way."""
        self._lanes[self._owner(sequence.id)].remove(sequence)
        self._length -= 1
