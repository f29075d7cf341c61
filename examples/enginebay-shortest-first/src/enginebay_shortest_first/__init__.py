"""Shortest job first: the waiting sequence with the least work starts next.

Work is counted in positions, the prompt and all tokens that may follow. Among requests
that wait together this order has the least mean waiting time (Smith, Various optimizers
for single-stage production, 1956); ``patience`` keeps it from starving long ones.
"""

import heapq

import msgspec

from enginebay import hookimpl
from enginebay.errors import IntegrityError, StackError
from enginebay.hookspecs.scheduler import SchedulerContext, SequenceView, StepBuilder

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When shortness stops to count."""

    patience: float = 10.0
    """Seconds after which a waiting request goes before all that came later."""


MAX_ASIDE = 16
"""Sequences that wait for a prefix which a step looks past, so that its cost is bounded."""

Place = tuple[float, float, int]
"""What decides, what decides between equals, and the sequence's id."""


class ShortestFirst:
    """Runs what runs, then starts by work; the longest gives way when memory runs out."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._waiting: dict[int, SequenceView] = {}
        # Two heaps of the same sequences; who left stays in them until its place comes up.
        self._by_work: list[Place] = []
        self._by_arrival: list[Place] = []

    def add(self, sequence: SequenceView) -> None:
        """Queue a new sequence, or one that was preempted."""
        self._waiting[sequence.id] = sequence
        heapq.heappush(self._by_work, (_work(sequence), sequence.arrival, sequence.id))
        heapq.heappush(self._by_arrival, (sequence.arrival, 0, sequence.id))
        if len(self._by_arrival) > 2 * len(self._waiting) + 64:
            self._tidy()

    def plan(self, build: StepBuilder) -> None:
        """Every call to ``build`` keeps the step's budgets, or changes nothing."""
        running = sorted(build.running, key=_work)
        while running:
            sequence = running.pop(0)
            while build.run(sequence).reason == "blocks":
                if not running or not build.preempt(running.pop()):
                    return
        aside: list[SequenceView] = []
        while self._waiting:
            sequence = self._next(build.now)
            grant = build.start(sequence)
            if not grant and (grant.reason != "prefix" or len(aside) == MAX_ASIDE):
                break
            self.remove(sequence.id)
            if not grant:
                aside.append(sequence)
        for sequence in aside:
            self.add(sequence)

    def remove(self, sequence_id: int) -> None:
        """Forget a sequence; its places in the orders are skipped later."""
        self._waiting.pop(sequence_id, None)
        if not self._waiting:
            self._by_work.clear()
            self._by_arrival.clear()

    def num_waiting(self) -> int:
        """Sequences not started."""
        return len(self._waiting)

    def check_integrity(self) -> None:
        """Every waiting sequence stands in both orders."""
        for order in (self._by_work, self._by_arrival):
            lost = self._waiting.keys() - {place[-1] for place in order}
            if lost:
                msg = f"waiting sequences {sorted(lost)[:8]} have lost their place"
                raise IntegrityError(msg)

    def _tidy(self) -> None:
        """Drop the places of those who left or came back."""
        waiting = self._waiting.values()
        self._by_work = [(_work(one), one.arrival, one.id) for one in waiting]
        self._by_arrival = [(one.arrival, 0, one.id) for one in waiting]
        heapq.heapify(self._by_work)
        heapq.heapify(self._by_arrival)

    def _next(self, now: float) -> SequenceView:
        oldest = self._first(self._by_arrival)
        if now - oldest.arrival > self._patience:
            return oldest
        return self._first(self._by_work)

    def _first(self, order: list[Place]) -> SequenceView:
        while order[0][-1] not in self._waiting:
            heapq.heappop(order)
        return self._waiting[order[0][-1]]


def _work(sequence: SequenceView) -> int:
    """Positions left to compute, if it generates all that it may."""
    return sequence.num_prompt + sequence.max_tokens - sequence.num_computed


@hookimpl
def enginebay_scheduler(options: Options, context: SchedulerContext) -> ShortestFirst:
    """Build the scheduler."""
    if options.patience < 0:
        msg = f"shortest-first: patience is {options.patience}; it must be 0 seconds or more"
        raise StackError(msg)
    return ShortestFirst(options.patience)
