"""StepBuilder: what a scheduler may do in one step, within budgets.

A policy calls ``start``, ``run`` and ``preempt``; each call either fits the budgets
and takes effect, or changes nothing and says why. So a policy can be slow or unfair,
never unsafe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, get_args

from .hookspecs.allocator import Shortfall
from .hookspecs.scheduler import Grant, How
from .ledger.shortage import kv_shortage
from .pending_plan import PendingPlan
from .sequence import Sequence, State

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequence_

    from .blocks import Blocks
    from .flow import StepPlan
    from .hookspecs.model import Limits
    from .hookspecs.scheduler import PreemptionCost, SequenceView
    from .roster import Roster

WAYS: Final = frozenset(get_args(How))
_ONE: Final = Grant(num_tokens=1)
"""What decoding is granted, for every sequence in every step."""


@dataclass(frozen=True)
class Preemption:
    """A sequence lost its seat and blocks: whose, for whom, how and why."""

    sequence: Sequence
    by: str
    """The request that lacked blocks just before, or ``policy``."""
    how: How
    reason: str
    num_tokens: int
    """Positions that it had in the cache."""


class StepBuilder:
    """Collects one step's plan. Made by the engine for each step."""

    def __init__(
        self,
        step: int,
        now: float,
        limits: Limits,
        blocks: Blocks,
        roster: Roster,
    ) -> None:
        self.now = now
        self.pending = PendingPlan(step, *roster.take_debts())
        self.preemptions: list[Preemption] = []
        self.waits: dict[int, str] = {}
        """Why a policy did not try a sequence, for the timeline."""
        self.denied: dict[int, Grant] = {}
        """The last denial of each sequence, for the timeline."""
        self.protected: Sequence | None = None
        """A sequence that a policy can't preempt (see ``Rescue``)."""
        self._short = ""
        """The request whose last call was denied for want of blocks."""
        self._limits = limits
        self._blocks = blocks
        self._seats = roster.seats
        self._known = roster.sequences
        self._tokens_left = limits.max_step_tokens

    @property
    def running(self) -> Sequence_[SequenceView]:
        """Started sequences that can run now, oldest start first."""
        return [s for s in self._seats.values() if not (s.num_scheduled or s.stalled)]

    @property
    def stalled(self) -> Sequence_[SequenceView]:
        """Started sequences whose readers are behind, oldest start first."""
        return [s for s in self._seats.values() if s.window and s.num_scheduled == 0 and s.stalled]

    @property
    def tokens_left(self) -> int:
        """Positions this step may still compute."""
        return self._tokens_left

    @property
    def seats_left(self) -> int:
        """Sequences that may still be started."""
        return self._limits.max_sequences - len(self._seats)

    @property
    def blocks_left(self) -> int:
        """KV blocks that a reservation could get now."""
        return self._blocks.allocator.num_free

    @property
    def empty(self) -> bool:
        """Whether nothing is to be computed so far."""
        return self.pending.empty

    def remaining(self, sequence: SequenceView) -> int:
        """Tokens of a sequence that could be computed now."""
        own = self._own(sequence)
        return own.num_tokens + len(own.drafts) - own.num_computed - own.num_scheduled

    def needed(self, sequence: SequenceView) -> int:
        """Free blocks that a waiting sequence would take for its known tokens."""
        return self._blocks.needed(self._own(sequence))

    def start(self, sequence: SequenceView, num_tokens: int | None = None) -> Grant:
        """Give a waiting sequence a seat and its first tokens, or say why not yet."""
        own = self._own(sequence)
        denial = self._may_start(own)
        if denial:
            return self._deny(own, denial)
        found = self._blocks.find(own)
        own.table = list(found.block_ids)
        own.num_computed = max(found.num_tokens, own.num_saved)
        grant = self._schedule(own, num_tokens, write_from=found.num_tokens)
        if not grant:
            self._blocks.allocator.free(own.id)
            own.num_computed = 0
            own.table = []
            return grant
        own.num_saved = 0
        own.num_cached = found.num_tokens
        if own.index == 0 and own.started_at is None:
            own.group.num_cached = found.num_tokens
        own.state = State.RUNNING
        if own.started_at is None:
            own.started_at = self.now
        self._seats[own.id] = own
        self.pending.started.append(own.start())
        return grant

    def run(self, sequence: SequenceView, num_tokens: int | None = None) -> Grant:
        """Schedule more tokens of a running sequence; once a step each."""
        own = self._known.get(sequence.id) or self._own(sequence)
        if own.state is not State.RUNNING:
            return self._deny(own, "waiting")
        if own.num_scheduled:
            return self._deny(own, "scheduled")
        if own.window and own.stalled:
            return self._deny(own, "stalled")
        if self._tokens_left <= 0:
            return self._deny(own, "tokens")
        return self._schedule(own, num_tokens, write_from=own.num_computed)

    def cost(self, victim: SequenceView) -> PreemptionCost:
        """What preempting a running sequence would cost."""
        return self._blocks.cost(self._own(victim))

    def preempt(self, victim: SequenceView, how: How = "cheapest", reason: str = "") -> bool:
        """Take seat and blocks from a running sequence not scheduled in this step."""
        own = self._own(victim)
        if own.state is not State.RUNNING or own.num_scheduled or own is self.protected:
            return False
        if how not in WAYS:
            return False
        num_tokens = own.num_computed
        done, ops = self._blocks.vacate(own, how)
        del self._seats[own.id]
        own.preempted(num_saved=num_tokens if done == "swap" else 0)
        self.pending.removed.append(own.id)
        self.pending.ops += ops
        why = reason or ("blocks" if self._short else "policy")
        by = self._short or "policy"
        self.preemptions.append(Preemption(own, by, done, why, num_tokens))
        return True

    def wait(self, sequence: SequenceView, reason: str) -> None:
        """Note why a policy does not even try a sequence, for the timeline."""
        self.waits[self._own(sequence).id] = reason

    def hold(self) -> None:
        """Grant nothing more in this step: what is in flight must come back first."""
        self._tokens_left = 0

    def plan(self) -> StepPlan | None:
        """What was collected, or ``None`` when nothing is to be computed."""
        return self.pending.plan()

    def known(self, sequence_id: int) -> Sequence | None:
        """The engine's sequence of that id."""
        return self._known.get(sequence_id)

    def lacks_room(self, sequence: Sequence) -> bool:
        """Whether its last call was denied for want of blocks or seats."""
        grant = self.denied.get(sequence.id)
        return grant is not None and grant.reason in ("blocks", "seats")

    def shortage(self, sequence: Sequence) -> str:
        """What a sequence lacks, in words: phase, ledger line, blocks, fix."""
        grant = self.denied.get(sequence.id)
        return kv_shortage(sequence, self._limits, grant.missing if grant else 0)

    def _own(self, view: SequenceView) -> Sequence:
        """The engine's own object: what a policy hands in is trusted for its id alone."""
        own = self._known.get(view.id)
        if own is None:
            msg = f"the scheduler named sequence {view.id}, which is not in the engine"
            raise LookupError(msg)
        return own

    def _may_start(self, own: Sequence) -> str:
        """Why a sequence can't be started; empty when it can be tried."""
        if own.state is not State.WAITING:
            return "started"
        if own.stalled:
            return "stalled"
        if self.seats_left <= 0:
            return "seats"
        if self._tokens_left <= 0:
            return "tokens"
        waits = own is not self.protected and self._blocks.awaits_prefix(own)
        return "prefix" if waits else ""

    def _schedule(self, own: Sequence, num_tokens: int | None, *, write_from: int) -> Grant:
        """:param write_from: first position that is written, by a load or by the span"""
        start = own.num_computed
        todo = len(own.token_ids) + len(own.drafts) - start - own.num_scheduled
        if todo <= 0:
            return self._deny(own, "done")
        count = todo if num_tokens is None or todo < num_tokens else num_tokens
        count = min(count, self._tokens_left)
        if count <= 0:
            return self._deny(own, "tokens")
        grown = self._blocks.grow(own, write_from, start + count)
        if isinstance(grown, Shortfall):
            return self._deny(own, "blocks", grown.missing)
        self._short = ""
        if grown.ops:
            self.pending.ops += grown.ops
        first, table = grown.first, grown.block_ids
        if own.state is State.WAITING:
            self.pending.ops += self._blocks.restore(own, write_from)
            first, table = 0, tuple(own.table)
        self.pending.add(own, start, count, first, table)
        self._tokens_left -= count
        own.num_scheduled += count
        return _ONE if count == 1 else Grant(num_tokens=count)

    def _deny(self, own: Sequence, reason: str, missing: int = 0) -> Grant:
        grant = Grant(reason=reason, missing=missing)
        self._short = own.request_id if reason == "blocks" else self._short
        self.denied[own.id] = grant
        return grant
