"""StepBuilder: what a scheduler may do in one step, within budgets.

A policy calls ``start``, ``run`` and ``preempt``; each call either fits the budgets
and takes effect, or changes nothing and says why. So a policy can be slow or unfair,
never unsafe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .flow import BlockOp, SequenceStart, Span, StepPlan
from .hookspecs.allocator import Match, Shortfall
from .hookspecs.scheduler import Grant
from .sequence import Sequence, State

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequence_

    from .flow import TokenIds
    from .hookspecs.allocator import Allocator
    from .hookspecs.model import Limits
    from .hookspecs.scheduler import SequenceView


class StepBuilder:
    """Collects one step's plan. Made by the engine for each step."""

    def __init__(
        self,
        step: int,
        now: float,
        limits: Limits,
        allocator: Allocator,
        seats: dict[int, Sequence],
        known: dict[int, Sequence],
    ) -> None:
        self.step = step
        self.now = now
        self.preempted: list[Sequence] = []
        self.waits: dict[int, str] = {}
        """Why a policy did not try a sequence, for the timeline."""
        self.preempted_for: dict[int, str] = {}
        """By preempted sequence: the request that lacked blocks just before."""
        self._short = "core"
        self.denied: dict[int, Grant] = {}
        """The last denial of each sequence, for the timeline."""
        self.protected: Sequence | None = None
        """A sequence that a policy can't preempt (see ``Rescue``)."""
        self._limits = limits
        self._allocator = allocator
        self._seats = seats
        self._known = known
        self._tokens_left = limits.max_step_tokens
        self._spans: list[Span] = []
        self._started: list[SequenceStart] = []
        self._removed: list[int] = []
        self._ops: list[BlockOp] = []

    @property
    def running(self) -> Sequence_[SequenceView]:
        """Started sequences that can run now, oldest start first."""
        return [s for s in self._seats.values() if s.num_scheduled == 0 and not s.stalled]

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
        return self._allocator.num_free

    def remaining(self, sequence: SequenceView) -> int:
        """Tokens of a sequence that could be computed now."""
        own = self._own(sequence)
        return own.num_tokens + len(own.drafts) - own.num_computed - own.num_scheduled

    def start(self, sequence: SequenceView, num_tokens: int | None = None) -> Grant:
        """Give a waiting sequence a seat and its first tokens, or say why not yet."""
        own = self._own(sequence)
        if own.state is not State.WAITING:
            return self._deny(own, "started")
        if own.stalled:
            return self._deny(own, "stalled")
        if self.seats_left <= 0:
            return self._deny(own, "seats")
        if self._tokens_left <= 0:
            return self._deny(own, "tokens")
        reused = self._reuse(own)
        own.num_computed = reused.num_tokens
        grant = self._schedule(own, num_tokens, reused.block_ids)
        if not grant:
            self._allocator.free(own.id)
            own.num_computed = 0
            return grant
        own.num_cached = reused.num_tokens
        if own.index == 0 and own.started_at is None:
            own.group.num_cached = reused.num_tokens
        own.state = State.RUNNING
        if own.started_at is None:
            own.started_at = self.now
        self._seats[own.id] = own
        self._started.append(own.start())
        return grant

    def run(self, sequence: SequenceView, num_tokens: int | None = None) -> Grant:
        """Schedule more tokens of a running sequence; once a step each."""
        own = self._own(sequence)
        if own.state is not State.RUNNING:
            return self._deny(own, "waiting")
        if own.num_scheduled:
            return self._deny(own, "scheduled")
        if own.stalled:
            return self._deny(own, "stalled")
        if self._tokens_left <= 0:
            return self._deny(own, "tokens")
        return self._schedule(own, num_tokens)

    def preempt(self, victim: SequenceView, how: str = "recompute") -> bool:
        """Take seat and blocks from a running sequence not scheduled in this step."""
        own = self._own(victim)
        if how != "recompute" or own.state is not State.RUNNING or own.num_scheduled:
            return False
        if own is self.protected:
            return False
        self._allocator.free(own.id)
        del self._seats[own.id]
        own.state = State.WAITING
        own.num_computed = 0
        own.drafts = ()
        own.num_preemptions += 1
        self._removed.append(own.id)
        self.preempted.append(own)
        self.preempted_for[own.id] = self._short
        return True

    def wait(self, sequence: SequenceView, reason: str) -> None:
        """Note why a policy does not even try a sequence, for the timeline."""
        self.waits[self._own(sequence).id] = reason

    def hold(self) -> None:
        """Grant nothing more in this step: what is in flight must come back first."""
        self._tokens_left = 0

    def remove(self, sequence_ids: list[int]) -> None:
        """Name sequences that the executor can forget (the engine's, not a policy's)."""
        self._removed.extend(sequence_ids)

    def plan(self) -> StepPlan | None:
        """What was collected, or ``None`` when nothing is to be computed."""
        if not self._spans:
            return None
        return StepPlan(
            step=self.step,
            spans=tuple(self._spans),
            started=tuple(self._started),
            removed=tuple(self._removed),
            block_ops=tuple(self._ops),
        )

    @property
    def empty(self) -> bool:
        """Whether nothing is to be computed so far."""
        return not self._spans

    def known(self, sequence_id: int) -> Sequence | None:
        """The engine's sequence of that id."""
        return self._known.get(sequence_id)

    def lacks_room(self, sequence: Sequence) -> bool:
        """Whether its last call was denied for want of blocks or seats."""
        grant = self.denied.get(sequence.id)
        return grant is not None and grant.reason in ("blocks", "seats")

    @property
    def removed(self) -> list[int]:
        """Sequences to be named in the next plan, should this one be empty."""
        return self._removed

    def _own(self, view: SequenceView) -> Sequence:
        """The engine's own object: what a policy hands in is trusted for its id alone."""
        own = self._known.get(view.id)
        if own is None:
            msg = f"the scheduler named sequence {view.id}, which is not in the engine"
            raise LookupError(msg)
        return own

    def _reuse(self, own: Sequence) -> Match:
        """Positions a new sequence need not compute: forked or matched; 0 is fine."""
        if own.sampling.prompt_logprobs is not None:
            return Match()
        first = own.group.sequences[0]
        shared = own.num_prompt - 1
        forks = first is not own and own.num_generated == 0 and shared > 0
        if forks and first.state is State.RUNNING and first.num_computed >= shared:
            return self._allocator.fork(first.id, own.id, shared)
        return self._allocator.match(own.id, own.group.identity, tuple(own.token_ids))

    def _schedule(self, own: Sequence, num_tokens: int | None, prefix: TokenIds = ()) -> Grant:
        todo = self.remaining(own)
        if todo <= 0:
            return self._deny(own, "done")
        count = min(todo, self._tokens_left, todo if num_tokens is None else num_tokens)
        if count <= 0:
            return self._deny(own, "tokens")
        start = own.num_computed + own.num_scheduled
        reserved = self._allocator.reserve(own.id, start, start + count)
        if isinstance(reserved, Shortfall):
            return self._deny(own, "blocks", reserved.missing)
        table = (*prefix[: reserved.first], *reserved.block_ids)
        table_from = 0 if prefix else reserved.first
        self._spans.append(self._span(own, start, count, table_from, table))
        self._ops.extend(reserved.ops)
        self._tokens_left -= count
        own.num_scheduled += count
        return Grant(num_tokens=count)

    def _span(
        self, own: Sequence, start: int, count: int, table_from: int, table: TokenIds
    ) -> Span:
        end = start + count
        num_drafts = max(0, end - own.num_tokens)
        return Span(
            sequence_id=own.id,
            start=start,
            num_tokens=count,
            drafts=own.drafts[:num_drafts],
            logits_from=own.num_tokens - 1 if end >= own.num_tokens else -1,
            prompt_logits=own.sampling.prompt_logprobs is not None and start < own.num_prompt - 1,
            table_from=table_from,
            table=table,
        )

    def _deny(self, own: Sequence, reason: str, missing: int = 0) -> Grant:
        grant = Grant(reason=reason, missing=missing)
        if reason == "blocks":
            self._short = own.request_id
        self.denied[own.id] = grant
        return grant
