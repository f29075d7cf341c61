"""The roster: every request and sequence in the engine, and how they leave it."""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import TYPE_CHECKING

from .flow import Ended, Failure
from .ledger.shortage import kv_shortage
from .sequence import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from .blocks import Blocks
    from .commit import Commit
    from .flow import BlockOp, Event, FinishReason, SequenceResult, Span, Written
    from .hookspecs.model import Limits
    from .hookspecs.scheduler import Scheduler
    from .intake import Intake
    from .sequence import Group, Sequence
    from .watch import Watch

IDLE_SECONDS = 0.001
"""Pause before asking again a scheduler that has work and plans none of it."""
STALLED_SECONDS = 0.05
"""Pause when every sequence waits for its reader."""


class Roster:
    """Who is here. Owned by the step thread; every way out leads through ``_leave``."""

    def __init__(
        self,
        *,
        intake: Intake,
        scheduler: Scheduler,
        blocks: Blocks,
        commit: Commit,
        watch: Watch,
        limits: Limits,
        stall_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.groups: dict[str, Group] = {}
        self.sequences: dict[int, Sequence] = {}
        """Every sequence that has not ended, by id."""
        self.seats: dict[int, Sequence] = {}
        """Those that hold a seat and blocks, oldest start first."""
        self.parked: dict[int, Sequence] = {}
        """Preempted ones whose readers are behind: nobody schedules them meanwhile."""
        self.forgotten: list[int] = []
        """Ended sequences that the executor has still to be told of."""
        self.owed: list[BlockOp] = []
        """Block operations of a step that came out empty, for the next one."""
        self.num_ended = 0
        """Sequences that have left, since the start."""
        self._intake = intake
        self._scheduler = scheduler
        self._blocks = blocks
        self._commit = commit
        self._watch = watch
        self._limits = limits
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._outbox: defaultdict[int, list[Event]] = defaultdict(list)
        self._deadlines: list[tuple[float, str]] = []

    def enter(self, group: Group) -> None:
        """Take in an accepted request; its first choice queues, the others share later."""
        self.groups[group.request.id] = group
        if group.deadline is not None:
            if len(self._deadlines) > 2 * len(self.groups) + 64:  # most have ended before theirs
                self._deadlines = sorted(filter(self._awaited, self._deadlines))
            heapq.heappush(self._deadlines, (group.deadline, group.request.id))
        for sequence in group.sequences:
            self.sequences[sequence.id] = sequence
        if group.max_tokens == 0 and group.sampling.prompt_logprobs is None:
            for sequence in group.sequences:
                self.finish(sequence, "length")
            return
        first, *group.deferred = group.sequences
        self._scheduler.add(first)

    def requeue(self, sequence: Sequence) -> None:
        """A preempted sequence waits again, unless the whole pool could not hold it."""
        if sequence.state is not State.WAITING:
            return  # the policy started it again in the same step
        if -(-sequence.num_tokens // self._limits.block_size) > self._limits.num_blocks:
            sequence.cut = ("capacity", kv_shortage(sequence, self._limits, 0))
            self.finish(sequence, "capacity")
        elif sequence.stalled:
            self.parked[sequence.id] = sequence
        else:
            self._scheduler.add(sequence)

    def advance(self, span: Span, output: SequenceResult | None, now: float) -> None:
        """Commit one span: tokens, cache bookkeeping, and perhaps the sequence's end."""
        sequence = self.sequences[span.sequence_id]
        rejected = len(span.drafts)
        if rejected and output and output.token_ids:
            rejected -= min(len(output.token_ids) - 1, rejected)
        self._watch.recomputed(sequence.computed(span.start, span.num_tokens, rejected))
        known = len(sequence.token_ids)
        self._outbox[sequence.group.client] += self._commit.advance(sequence, output, now)
        count = len(sequence.token_ids) - known
        if count:
            self._watch.ready(sequence, count, now)
        if sequence.state is State.ENDED:
            if sequence.reason != "error":
                self._settle(sequence, rejected)  # a last step's blocks are as good as others
            self._leave(sequence)
        elif sequence.cut is not None:
            self.finish(sequence, sequence.cut[0])
        else:
            self._settle(sequence, rejected)

    def cut(self, request_id: str, reason: FinishReason, message: str = "") -> None:
        """End a request: now, or when the plan in flight that names it is committed."""
        group = self.groups.get(request_id)
        for sequence in list(group.sequences) if group else ():
            if sequence.state is State.ENDED:
                continue
            sequence.cut = sequence.cut or (reason, message)
            if not sequence.num_scheduled:
                self.finish(sequence, reason)

    def check_deadlines(self, now: float) -> None:
        """End the requests whose answers have become worthless."""
        while self._deadlines and self._deadlines[0][0] <= now:
            entry = heapq.heappop(self._deadlines)
            if self._awaited(entry):
                self.cut(entry[1], "deadline", "its deadline passed")

    def abandon(self, client: int) -> None:
        """End every request of a client that listens no more."""
        for group in list(self.groups.values()):
            if group.client == client:
                self.cut(group.request.id, "cancelled")

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence that no plan in flight names."""
        if sequence.state is not State.ENDED:
            self._outbox[sequence.group.client] += self._commit.end(sequence, reason)
            self._leave(sequence)

    def end_all(self, message: str) -> None:
        """Every request gets its terminal event without touching other parts."""
        for group in list(self.groups.values()):
            events = self._outbox[group.client]
            for sequence in group.sequences:
                ended = self._commit.end(sequence, "error")
                if ended:
                    self._watch.finished(sequence, self._clock())
                events += ended
            failure = Failure(message=message, kind="engine")
            events.append(Ended(request_id=group.request.id, usage=group.usage(), error=failure))
            self._intake.finished(group)
            self._watch.ended(group, self._clock(), message)
        self.groups.clear()
        self.sequences.clear()
        self.seats.clear()
        self.parked.clear()

    def written(self, written: tuple[Written, ...]) -> None:
        """Note tokens as written to their reader."""
        for report in written:
            group = self.groups.get(report.request_id)
            if group is None:
                self._watch.written_late(report)
            elif 0 <= report.index < len(group.sequences):
                sequence = group.sequences[report.index]
                sequence.num_written = self._watch.written(report, sequence.num_written)

    def check_readers(self, now: float) -> None:
        """Queue whose readers caught up; cut those that take nothing for too long."""
        for sequence in [*self.seats.values(), *self.parked.values()]:
            if not (sequence.window and sequence.stalled):
                sequence.stalled_since = None
                if self.parked.pop(sequence.id, None) is not None:
                    self._scheduler.add(sequence)
            elif sequence.stalled_since is None:
                sequence.stalled_since = now
            elif now - sequence.stalled_since > self._stall_seconds:
                self.cut(sequence.request_id, "slow_reader", "the reader took nothing in time")

    def take_events(self) -> list[tuple[int, list[Event]]]:
        """What was said since the last call, by client."""
        events = [(client, said) for client, said in self._outbox.items() if said]
        self._outbox = defaultdict(list)
        return events

    def owe(self, forgotten: list[int], owed: list[BlockOp]) -> None:
        """A step came out empty: what it would have told the executor is still to be told."""
        self.forgotten += forgotten
        self.owed += owed

    def take_debts(self) -> tuple[list[int], list[BlockOp]]:
        """Ended sequences to name, and operations to begin with, in the next plan."""
        debts = self.forgotten, self.owed
        self.forgotten, self.owed = [], []
        return debts

    def pause(self) -> float | None:
        """Seconds to sleep when a step had nothing to compute; ``None``: until woken."""
        if not self.sequences:
            return None
        return STALLED_SECONDS if all(s.stalled for s in self.sequences.values()) else IDLE_SECONDS

    def _awaited(self, entry: tuple[float, str]) -> bool:
        group = self.groups.get(entry[1])
        return group is not None and group.deadline == entry[0]

    def _settle(self, sequence: Sequence, rejected: int) -> None:
        """Tell the allocator what stands, and let waiting choices share the prompt."""
        if rejected:
            self._blocks.allocator.trim(sequence.id, sequence.num_computed)
        # A sequence that stopped within its accepted drafts has computed more than it said.
        stands = min(sequence.num_computed, sequence.num_tokens)
        self._blocks.allocator.publish(sequence.id, sequence.token_ids, stands)
        if sequence.group.deferred and sequence.num_computed >= sequence.num_prompt - 1:
            self._undefer(sequence.group)

    def _undefer(self, group: Group) -> None:
        deferred, group.deferred = group.deferred, []
        for sequence in deferred:
            if sequence.state is State.WAITING:
                self._scheduler.add(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Give back what an ended sequence held; the last of its request ends it."""
        if self.sequences.pop(sequence.id, None) is None:
            return
        self.num_ended += 1
        self.parked.pop(sequence.id, None)
        if self.seats.pop(sequence.id, None) is not None:
            self.forgotten.append(sequence.id)
        self._scheduler.remove(sequence.id)
        self._blocks.release(sequence.id)
        self._watch.finished(sequence, self._clock())
        group = sequence.group
        self._intake.started(group.request.id, sequence.index)  # it left without a seat
        if group.error is not None:
            self.cut(group.request.id, "error")
        self._undefer(group)
        if group.ended and self.groups.pop(group.request.id, None) is not None:
            self._outbox[group.client].append(self._commit.ended(group))
            self._intake.finished(group)
            self._watch.ended(group, self._clock())
