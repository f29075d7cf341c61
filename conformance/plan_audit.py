"""An audit of step plans: budgets, order and blocks, as the executor sees them.

It knows nothing of schedulers, builders or allocators: only the limits, the plans and
their results. What it lets through is safe to run on hardware.
"""

from collections import Counter
from dataclasses import dataclass, field

from enginebay.flow import Span, StepPlan, StepResult
from enginebay.hookspecs.model import Limits

from .check import require


@dataclass
class Seat:
    """What the executor knows of one started sequence."""

    computed: int = 0
    """Positions that are in the cache, or will be when the plans in flight are done."""
    table: list[int] = field(default_factory=list)


class PlanAudit:
    """Follows every plan of an engine; raises ``Broken`` at the first wrong one."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.seats: dict[int, Seat] = {}
        self.num_plans = 0
        self.most_tokens = 0
        self.most_seats = 0

    def plan(self, plan: StepPlan) -> None:
        """Hold a new plan against everything before it."""
        limits = self.limits
        for sequence_id in plan.removed:
            self.seats.pop(sequence_id, None)
        for start in plan.started:
            fresh = start.sequence_id not in self.seats
            require(fresh, "plan/started", f"sequence {start.sequence_id} was started twice")
            self.seats[start.sequence_id] = Seat()
        told = f"{len(self.seats)} sequences hold seats, of {limits.max_sequences}"
        require(len(self.seats) <= limits.max_sequences, "plan/seats", told)
        told = f"{plan.num_tokens} tokens in one step, of {limits.max_step_tokens}"
        require(0 < plan.num_tokens <= limits.max_step_tokens, "plan/tokens", told)
        named = [span.sequence_id for span in plan.spans]
        if len(set(named)) < len(named):
            often = sorted({i for i in named if named.count(i) > 1})
            require(False, "plan/once", f"sequences {often} stand twice in one step")
        started = {start.sequence_id for start in plan.started}
        for span in plan.spans:
            self._span(span, begins=span.sequence_id in started)
        self._check_blocks(plan)
        self._check_moves(plan)
        self.num_plans += 1
        self.most_tokens = max(self.most_tokens, plan.num_tokens)
        self.most_seats = max(self.most_seats, len(self.seats))

    def result(self, plan: StepPlan, result: StepResult) -> None:
        """Positions of rejected drafts are to be computed again."""
        drawn = {output.sequence_id: len(output.token_ids) for output in result.outputs}
        for span in plan.spans:
            seat = self.seats.get(span.sequence_id)
            if seat is not None and span.drafts:
                accepted = max(drawn.get(span.sequence_id, 0) - 1, 0)
                seat.computed -= len(span.drafts) - min(accepted, len(span.drafts))

    def _span(self, span: Span, *, begins: bool) -> None:
        seat = self.seats.get(span.sequence_id)
        if seat is None:
            require(False, "plan/known", f"sequence {span.sequence_id} holds no seat")
            return
        require(span.num_tokens > 0, "plan/tokens", f"an empty span: {span}")
        # A new sequence may begin past positions that were found in the cache.
        follows = span.start >= 0 if begins else span.start == seat.computed
        if not follows:
            told = f"sequence {span.sequence_id} goes on at {span.start}, not at {seat.computed}"
            require(False, "plan/contiguous", told)
        if span.table_from > len(seat.table):
            told = f"table from {span.table_from} on, of {len(seat.table)} entries"
            require(False, "plan/table", told)
        seat.computed = span.start + span.num_tokens
        seat.table[span.table_from :] = span.table
        pool = range(self.limits.num_blocks)
        strange = [block for block in span.table if block not in pool]
        require(not strange, "plan/table", f"blocks {strange} are not in the pool")
        if len(seat.table) * self.limits.block_size < seat.computed:
            told = f"{len(seat.table)} blocks for {seat.computed} positions"
            require(False, "plan/table", told)

    def _check_blocks(self, plan: StepPlan) -> None:
        """Whoever writes a block holds it alone."""
        size = self.limits.block_size
        holders: Counter[int] = Counter()
        for seat in self.seats.values():
            holders.update(seat.table[: -(-seat.computed // size)])
        for span in plan.spans:
            table = self.seats[span.sequence_id].table
            end = span.start + span.num_tokens
            for block in table[span.start // size : -(-end // size)]:
                if holders[block] != 1:
                    told = f"sequence {span.sequence_id} writes block {block}, which others hold"
                    require(False, "plan/write-alone", told)

    def _check_moves(self, plan: StepPlan) -> None:
        """Bytes go into the blocks of those that begin; a copy may be of one that runs."""
        size, begun = self.limits.block_size, {start.sequence_id for start in plan.started}
        for op in plan.block_ops:
            if op.kind == "save":
                continue
            holders = [
                number
                for number, seat in self.seats.items()
                if op.target in seat.table[: -(-seat.computed // size)]
            ]
            running = [number for number in holders if number not in begun]
            if not holders or len(running) > (op.kind == "copy"):
                told = f"{op}: the block is held by sequences {holders}, of which {running} run"
                require(False, "plan/block-ops", told)
