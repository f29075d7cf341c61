"""The core's own parts with one fault each: what the audit and the worlds must see.

Whatever a policy does, builder, blocks and allocator keep the budgets. These don't.
"""

from typing import Final, cast

from enginebay.blocks import Blocks
from enginebay.build import StepBuilder
from enginebay.flow import BlockOp
from enginebay.hookspecs.allocator import Reservation, Shortfall
from enginebay.hookspecs.scheduler import Grant, How, Scheduler, SequenceView
from enginebay.hookspecs.scheduler import StepBuilder as Build
from enginebay.plugins.allocators.paged import Paged
from enginebay.plugins.schedulers.chunked import Chunked, Options
from enginebay.sequence import Sequence
from enginebay.swap import SwapSpace

from ..contention import CONTENDED
from ..harness import Harness
from .allocators import FreesTwice
from .mutant import Mutant

HUGE: Final = 10**9


class ForgetsTokens(StepBuilder):
    """A step computes as much as is asked for."""

    def _schedule(self, own: Sequence, num_tokens: int | None, *, write_from: int) -> Grant:
        self._tokens_left = HUGE
        return super()._schedule(own, num_tokens, write_from=write_from)


class ForgetsSeats(StepBuilder):
    """There is always one more seat."""

    @property
    def seats_left(self) -> int:
        """As many as anybody wants."""
        return HUGE


class SchedulesTwice(StepBuilder):
    """A running sequence gets a second span in the same step."""

    def run(self, sequence: SequenceView, num_tokens: int | None = None) -> Grant:
        grant = super().run(sequence, num_tokens)
        own = self._own(sequence)
        if grant and own.num_computed + own.num_scheduled < own.num_tokens:
            self._schedule(own, num_tokens, write_from=own.num_computed)
        return grant


class KeepsTheVictim(StepBuilder):
    """The executor is not told of a sequence that gave way."""

    def preempt(self, victim: SequenceView, how: How = "cheapest", reason: str = "") -> bool:
        done = super().preempt(victim, how, reason)
        if done:
            self.pending.removed.remove(victim.id)
        return done


class ForgetsBlocks(Blocks):
    """Where blocks are short, a block of somebody else's is handed out."""

    def grow(self, sequence: Sequence, start: int, end: int) -> Reservation | Shortfall:
        answer = super().grow(sequence, start, end)
        if isinstance(answer, Reservation):
            return answer
        first, stolen = len(sequence.table), (0,) * answer.missing
        sequence.table.extend(stolen)
        return Reservation(first=first, block_ids=stolen)


class LeaksTheEnded(Blocks):
    """Who ended keeps its blocks."""

    def release(self, sequence_id: int) -> None:
        self.swap.drop(sequence_id)


class LeaksTheSwapped(Blocks):
    """Who was swapped out and left keeps its host slots."""

    def release(self, sequence_id: int) -> None:
        self.allocator.free(sequence_id)


class FreesTheLiving(Blocks):
    """A sequence's blocks are free for others while it goes on."""

    def grow(self, sequence: Sequence, start: int, end: int) -> Reservation | Shortfall:
        answer = super().grow(sequence, start, end)
        cast("Paged", self.allocator).tables.pop(sequence.id, None)
        return answer


class ForgetsToLoad(Blocks):
    """What was swapped out does not come back."""

    def restore(self, sequence: Sequence, start: int) -> list[BlockOp]:
        super().restore(sequence, start)
        return []


class LoadsTheOthers(SwapSpace):
    """Slots come back in another order."""

    def load(self, sequence_id: int, table: list[int], start: int) -> list[BlockOp]:  # type: ignore[override]
        ops = super().load(sequence_id, table, start)
        sources = [op.source for op in reversed(ops)]
        return [
            BlockOp(kind="load", source=source, target=op.target)
            for source, op in zip(sources, ops, strict=True)
        ]


class LoadsBehindTheTable(SwapSpace):
    """What comes back goes into a block that is free, or somebody else's."""

    def load(self, sequence_id: int, table: list[int], start: int) -> list[BlockOp]:  # type: ignore[override]
        ops = super().load(sequence_id, table, start)
        free = min({*range(CONTENDED.num_blocks)} - {*table})
        return [BlockOp(kind="load", source=op.source, target=free) for op in ops]


class SavesTooLate(SwapSpace):
    """A slot is handed out twice."""

    def save(self, sequence_id: int, table: list[int], num_tokens: int) -> list[BlockOp]:  # type: ignore[override]
        ops = super().save(sequence_id, table, num_tokens)
        self._free.append(ops[0].target)
        return ops


def harness_with(part: type) -> Harness:
    """An engine under pressure, one of whose parts is ``part`` instead of its parent."""

    class Meddled(Chunked):
        """The builder that it is given becomes the faulty one."""

        def plan(self, build: Build) -> None:
            if issubclass(part, StepBuilder):
                build.__class__ = part
            super().plan(build)

    def make(limits: object) -> Scheduler:
        return Meddled(Options(max_chunk=6), CONTENDED)

    allocator = part if issubclass(part, Paged) else Paged
    harness = Harness(make, CONTENDED, make_allocator=allocator)
    blocks = harness.engine.blocks
    for whole in (blocks, blocks.swap):
        if issubclass(part, type(whole)):
            whole.__class__ = part
    return harness


CORE_MUTANTS: Final = (
    Mutant("a forgotten token budget", ForgetsTokens, "plan/tokens"),
    Mutant("a forgotten seat budget", ForgetsSeats, "plan/seats"),
    Mutant("a forgotten block budget", ForgetsBlocks, "plan/write-alone"),
    Mutant("a sequence twice in a step", SchedulesTwice, "plan/once"),
    Mutant("a victim that the executor keeps", KeepsTheVictim, "plan/write-alone"),
    Mutant("a leak of the ended", LeaksTheEnded, "core/conservation"),
    Mutant("a leak of host slots", LeaksTheSwapped, "core/comes-back"),
    Mutant("blocks of the living freed", FreesTheLiving, "core/integrity"),
    Mutant("a double free", FreesTwice, "core/integrity"),
    Mutant("a swap without a load", ForgetsToLoad, "plan/content"),
    Mutant("a swap into the wrong blocks", LoadsTheOthers, "plan/content"),
    Mutant("a swap into a stranger's block", LoadsBehindTheTable, "plan/block-ops"),
    Mutant("a host slot handed out twice", SavesTooLate, "core/integrity"),
)
"""Of each, ``make`` is the faulty part, for ``harness_with``."""
