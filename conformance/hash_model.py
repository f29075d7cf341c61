"""An executor without a model: every token depends on the whole prefix, through blocks.

A position's "keys and values" are a hash of the token there and of what the cache holds
one position before. It is written to and read from imagined KV blocks, with the plan's
own tables and block operations, so a wrong table, a forgotten copy or a block that was
reused too early changes what is drawn. ``continuation`` says what must be drawn.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from enginebay.flow import (
    Alternative,
    BlockOp,
    SequenceResult,
    SequenceStart,
    Span,
    StepPlan,
    StepResult,
    TokenIds,
    TokenLogprob,
)
from enginebay.hookspecs.executor import Handle

from .check import require
from .clocks import Clock
from .plan_audit import PlanAudit

_MASK: Final = 2**64 - 1


def advance(state: int, token_id: int) -> int:
    """The state after one more token."""
    state = (state * 6364136223846793005 + token_id * 1442695040888963407 + 1) & _MASK
    return state ^ (state >> 29)


def draw(state: int, seed: int, index: int, vocab_size: int) -> int:
    """The token after a state: uniform over the vocabulary."""
    mixed = advance(advance(state, seed & _MASK), index)
    return (mixed >> 17) % vocab_size


def continuation(
    prompt: Sequence[int], count: int, *, seed: int, index: int = 0, vocab_size: int
) -> list[int]:
    """What ``HashModel`` generates after a prompt, whatever runs beside it."""
    state = 0
    for token_id in prompt:
        state = advance(state, token_id)
    tokens = []
    for _ in range(count):
        tokens.append(draw(state, seed, index, vocab_size))
        state = advance(state, tokens[-1])
    return tokens


def step_seconds(plan: StepPlan) -> float:
    """A cost that looks like a small accelerator's: a launch, then each position."""
    return 0.004 + 0.00005 * plan.num_tokens


@dataclass
class Row:
    """What is known of one sequence."""

    start: SequenceStart
    tokens: list[int]
    table: list[int]
    states: list[int] = field(default_factory=list)
    """What the cache must hold at each position, as far as it was asked."""


@dataclass(frozen=True)
class Pending:
    """A plan under way."""

    step: int
    plan: StepPlan
    result: StepResult
    done: float


class HashModel:
    """Executor over imagined blocks. ``depth`` plans may be in flight."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        num_swap_blocks: int = 0,
        swap_seconds: float = 0.0002,
        vocab_size: int,
        clock: Clock,
        depth: int = 1,
        cost: Callable[[StepPlan], float] = step_seconds,
        audit: PlanAudit | None = None,
        verify: bool = True,
        lengths: Mapping[str, int] | None = None,
    ) -> None:
        """:param swap_seconds: to save one block and load it again
        :param verify: compare the whole context with what it must hold, at each span
        :param lengths: of answers, by request id: the last token, and no other, is 0
        """
        self.num_blocks = num_blocks
        self.num_swap_blocks = num_swap_blocks
        self.swap_seconds = swap_seconds
        self.depth = depth
        self.num_plans = 0
        self.rows: dict[int, Row] = {}
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._clock = clock
        self._cost = cost
        self._audit = audit
        self._verify = verify
        self._lengths = lengths
        self._memory: list[list[int]] = [[0] * block_size for _ in range(num_blocks)]
        self._host: dict[int, list[int]] = {}
        self._free_at = 0.0

    def warm_up(self) -> None:
        """Nothing to compile."""

    def execute(self, plan: StepPlan) -> Pending:
        """Compute a plan; it is done when the imagined hardware gets to its end."""
        self.num_plans += 1
        if self._audit is not None:
            self._audit.plan(plan)
        for sequence_id in plan.removed:
            self.rows.pop(sequence_id, None)
        for start in plan.started:
            self.rows[start.sequence_id] = Row(start, list(start.token_ids), [])
        for span in plan.spans:
            self.rows[span.sequence_id].table[span.table_from :] = span.table
        for op in plan.block_ops:
            self._move(op)
        computed = [(span, self._compute(span)) for span in plan.spans]
        outputs = tuple(
            self._output(span, states)
            for span, states in computed
            if span.logits_from >= 0 or span.prompt_logits
        )
        moved = sum(op.kind != "copy" for op in plan.block_ops)
        seconds = self._cost(plan) + moved * self.swap_seconds / 2
        self._free_at = max(self._free_at, self._clock()) + seconds
        result = StepResult(step=plan.step, outputs=outputs, duration=seconds)
        return Pending(plan.step, plan, result, self._free_at)

    def collect(self, handle: Handle) -> StepResult:
        """Wait for a plan. :raises TypeError: it is not one of its own"""
        if not isinstance(handle, Pending):
            raise TypeError(f"{handle!r} is no plan of this executor")
        self._clock.wait_until(handle.done)
        if self._audit is not None:
            self._audit.result(handle.plan, handle.result)
        return handle.result

    def memory(self) -> dict[str, int]:
        """It has none."""
        return {"weights": 0, "kv": 0}

    def close(self) -> None:
        """Forget everything."""
        self.rows.clear()

    def _move(self, op: BlockOp) -> None:
        """A slot is empty once it was loaded, so a second load of it shows. One whose
        sequence was dropped is saved over."""
        if op.kind == "copy":
            self._memory[op.target] = list(self._memory[op.source])
        elif op.kind == "save":
            told = f"there is no slot {op.target} of {self.num_swap_blocks}"
            require(0 <= op.target < self.num_swap_blocks, "plan/block-ops", told)
            self._host[op.target] = list(self._memory[op.source])
        else:
            told = f"nothing is saved in slot {op.source}"
            require(op.source in self._host, "plan/block-ops", told)
            self._memory[op.target] = self._host.pop(op.source)

    def _compute(self, span: Span) -> list[int]:
        """States of the span's positions, read from and written to the blocks."""
        row = self.rows[span.sequence_id]
        known = row.tokens[span.start : span.start + span.num_tokens - len(span.drafts)]
        if self._verify:
            self._check_context(row, span)
        state = self._read(row, span.start - 1) if span.start else 0
        states = []
        for position, token_id in enumerate((*known, *span.drafts), start=span.start):
            state = advance(state, token_id)
            block, offset = divmod(position, self._block_size)
            self._memory[row.table[block]][offset] = state
            states.append(state)
        return states

    def _check_context(self, row: Row, span: Span) -> None:
        states, size = row.states, self._block_size
        for position in range(len(states), span.start):
            states.append(advance(states[-1] if states else 0, row.tokens[position]))
        for place in range(-(-span.start // size)):
            begin, end = place * size, min((place + 1) * size, span.start)
            held = self._memory[row.table[place]]
            if held[: end - begin] != states[begin:end]:
                told = f"positions {begin} to {end - 1} of sequence {span.sequence_id}"
                require(False, "plan/content", f"{told} hold something else")

    def _read(self, row: Row, position: int) -> int:
        return self._memory[row.table[position // self._block_size]][position % self._block_size]

    def _output(self, span: Span, states: list[int]) -> SequenceResult:
        row = self.rows[span.sequence_id]
        tokens: list[int] = []
        wanted = states[span.logits_from - span.start :] if span.logits_from >= 0 else []
        for number, state in enumerate(wanted):
            tokens.append(self._drawn(row, state, number))
            if number >= len(span.drafts) or tokens[-1] != span.drafts[number]:
                break
        row.tokens += tokens
        return SequenceResult(
            sequence_id=span.sequence_id,
            token_ids=tuple(tokens),
            logprobs=_scored(tokens) if row.start.sampling.logprobs is not None else None,
            prompt_logprobs=_scored(self._predicted(row, span)) if span.prompt_logits else (),
        )

    def _drawn(self, row: Row, state: int, number: int) -> int:
        """:param number: tokens drawn before it in this step"""
        start = row.start
        token_id = draw(state, start.seed, start.index, self._vocab_size)
        if self._lengths is None:
            return token_id
        count = len(row.tokens) - start.num_prompt + number + 1
        ends = count >= self._lengths[start.request_id]
        return 0 if ends else 1 + token_id % (self._vocab_size - 1)

    @staticmethod
    def _predicted(row: Row, span: Span) -> TokenIds:
        """Prompt tokens that the span's positions predict."""
        end = min(span.start + span.num_tokens, row.start.num_prompt - 1)
        return tuple(row.tokens[span.start + 1 : end + 1])


def _scored(token_ids: Sequence[int]) -> tuple[TokenLogprob, ...]:
    """Made-up log-probabilities that name their token."""
    return tuple(
        TokenLogprob(token=Alternative(token_id=token_id, logprob=-1.0 - token_id / 1024, rank=1))
        for token_id in token_ids
    )
