"""Fair shares between tenants: whoever was served least goes first.

VTC (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024; arXiv 2401.00588)
on chunked prefill. Each tenant has a virtual token counter of what was computed for it.
Every choice (who starts, whose prompt piece, who gives way) looks at the counters; a
tenant that begins to wait is lifted to the least counter of those that wait, so nobody
saves up service while away. Within a tenant it is first come, first served.

Seats are held for whole answers, longer than a newcomer may wait. So, unless ``preempt``
is off, a waiting sequence can take the place of a running one of another tenant:

- at once and ahead of the order, when its tenant asks for no more than its share of the
  seats (by weight), the other one keeps more than it, and the sequence was not preempted
  before; its tenant may be ahead by ``lead`` at most;
- else when the other one is ahead by more than ``lead`` and either keeps more seats than
  it, or it has none at all.

The farthest ahead gives way, its youngest first, with reason ``fairness``. A seat never
goes back and forth: the first rule holds once a sequence, the second costs ``lead`` each.
While two tenants are backlogged their service differs by no more than VTC's bound; by
``lead`` more if one asks for no more than its share.
"""

import math
from collections import deque
from typing import Final

import msgspec

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import (
    Grant,
    How,
    Scheduler,
    SchedulerContext,
    SequenceView,
    StepBuilder,
)

from .lanes import Rank, RunningLanes, WaitingLanes, rank
from .service import Service, Tenant
from .turns import Turns

CONTRACT = (1, 0)
MAX_AHEAD: Final = 4
"""Sequences that may start ahead of the order in one step, so that its cost is bounded."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What service costs, who gets how much of it, and how room is made."""

    weights: dict[str, float] = {}
    """Shares by tenant; whoever is not named has 1."""
    input_price: float = 1.0
    """Of a prompt position that is computed."""
    output_price: float = 2.0
    """Of a generated token."""
    lead: float = 1024.0
    """Priced tokens by weight that a tenant may be ahead before it must give up a place."""
    preempt: bool = True
    """Whether a waiting sequence may take the place of one of a tenant that is ahead."""
    max_chunk: int = 256
    """Tokens of one prompt in one step at most."""
    preemption: How = "cheapest"
    """What becomes of the cached positions of a sequence that gives way."""


class Fair:
    """The tenant with the least counter first."""

    def __init__(self, options: Options, limits: Limits) -> None:
        self._options = options
        self._limits = limits
        self.service = Service(options.input_price, options.output_price, options.weights)
        self._queue = WaitingLanes(self._owner)
        self._modest_ones: deque[SequenceView] = deque()
        """Of tenants that asked for no more than their share; may have left the queue."""

    def rank(self, sequence: SequenceView) -> Rank:
        """By its tenant's counter, then by arrival."""
        return rank(self._owner(sequence.id), sequence)

    def may_take(self, sequence: SequenceView, victim: SequenceView) -> bool:
        """See the module: at once up to its share, else when the other is far ahead."""
        own, other = self._owner(sequence.id), self._owner(victim.id)
        if not self._options.preempt or own is other:
            return False
        ahead, lead = other.counter - own.counter, self._options.lead
        keeps_more = (own.seats + 1) / own.weight < other.seats / other.weight
        if keeps_more and ahead >= -lead and self._modest(sequence):
            return True
        return ahead > lead and (keeps_more or not own.seats)

    def granted(self, sequence: SequenceView, grant: Grant, *, started: bool) -> None:
        """Charge its tenant."""
        self.service.granted(sequence, grant, started=started)

    def add(self, sequence: SequenceView) -> None:
        """Queue for its tenant, which is lifted if it did not wait before."""
        account = self.service.enter(sequence)
        self.service.unseat(account)
        if account.tenant not in self._queue:
            self._lift(account.tenant)
        self._queue.add(sequence)
        if self._options.preempt and self._modest(sequence):
            self._modest_ones.append(sequence)
        if len(self._modest_ones) > 2 * len(self._queue) + 64:
            held = [waiting for waiting in self._modest_ones if self._queue.holds(waiting)]
            self._modest_ones = deque(held)

    def plan(self, build: StepBuilder) -> None:
        """Run and start, the least served tenant first."""
        running = build.running
        num_seats = self._limits.max_sequences - build.seats_left
        self.service.reconcile((*running, *build.stalled), num_seats)
        Turns(
            build,
            self,
            self._queue,
            RunningLanes(running, self._owner),
            self._limits,
            max_chunk=self._options.max_chunk,
            how=self._options.preemption,
            reason="fairness",
        ).play(self._ahead())
        self.service.level = max(self.service.level, self._queue.level())

    def remove(self, sequence_id: int) -> None:
        """Forget a sequence, and an idle tenant that has nothing to be held against it."""
        if sequence_id in self.service.accounts:
            self._queue.remove(sequence_id)
            self.service.leave(sequence_id)

    def num_waiting(self) -> int:
        """Sequences not started."""
        return len(self._queue)

    def check_integrity(self) -> None:
        """The queue is whole, and so are the accounts."""
        self._queue.check_integrity()
        self.service.check_integrity()

    def _modest(self, sequence: SequenceView) -> bool:
        """Whether its tenant asks for no more than its share of the seats."""
        own = self._owner(sequence.id)
        share = self._limits.max_sequences * own.weight / self.service.total_weight
        return own.num_sequences <= share and not sequence.num_preemptions

    def _ahead(self) -> list[SequenceView]:
        """A few of those that need not wait for their turn."""
        chosen = []
        most = self._queue.level() + self._options.lead
        for _ in range(min(len(self._modest_ones), MAX_AHEAD)):
            sequence = self._modest_ones.popleft()
            if self._queue.holds(sequence) and self._modest(sequence):
                self._modest_ones.append(sequence)
                if self._owner(sequence.id).counter <= most:
                    chosen.append(sequence)
        return chosen

    def _lift(self, tenant: Tenant) -> None:
        """Nobody saves up service while not waiting for any."""
        level = self.service.level = max(self.service.level, self._queue.level())
        tenant.counter = max(tenant.counter, level)

    def _owner(self, sequence_id: int) -> Tenant:
        return self.service.accounts[sequence_id].tenant


@hookimpl
def enginebay_scheduler(options: Options, context: SchedulerContext) -> Scheduler:
    """Build the scheduler."""
    if options.max_chunk < 1:
        msg = f"scheduler.fair: max_chunk is {options.max_chunk}; it must be 1 or more"
        raise StackError(msg)
    positive = {"output_price": options.output_price, "lead": options.lead}
    positive |= {f"weights.{name}": weight for name, weight in options.weights.items()}
    for name, value in positive.items():
        if not 0 < value < math.inf:
            msg = f"scheduler.fair: {name} is {value}; it must be above 0 and finite"
            raise StackError(msg)
    if not 0 <= options.input_price < math.inf:
        msg = f"scheduler.fair: input_price is {options.input_price}; it must be 0 or more, finite"
        raise StackError(msg)
    return Fair(options, context.limits)
