"""A step plan while it is put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .flow import Span, StepPlan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .flow import BlockOp, SequenceStart, TokenIds
    from .sequence import Sequence


class PendingPlan:
    """Spans, starts, removals and block operations of one step, in order."""

    def __init__(self, step: int, removed: Iterable[int], ops: Iterable[BlockOp]) -> None:
        """:param removed: sequences that ended since the last plan
        :param ops: operations of a step that came out empty: they come first
        """
        self.step = step
        self.removed = list(removed)
        self.ops = list(ops)
        self.started: list[SequenceStart] = []
        self.spans: list[Span] = []

    @property
    def empty(self) -> bool:
        """Whether nothing is to be computed so far."""
        return not self.spans

    def add(
        self, sequence: Sequence, start: int, count: int, table_from: int, table: TokenIds
    ) -> None:
        """Compute ``count`` positions of a sequence from ``start`` on."""
        end, known = start + count, len(sequence.token_ids)
        if end == known and sequence.sampling.prompt_logprobs is None:  # decoding, nearly always
            span = Span(
                sequence_id=sequence.id,
                start=start,
                num_tokens=count,
                logits_from=known - 1,
                table_from=table_from,
                table=table,
            )
        else:
            span = self._span(sequence, start, count, table_from, table)
        self.spans.append(span)

    @staticmethod
    def _span(sequence: Sequence, start: int, count: int, table_from: int, table: TokenIds) -> Span:
        end, known = start + count, len(sequence.token_ids)
        scores = sequence.sampling.prompt_logprobs is not None
        return Span(
            sequence_id=sequence.id,
            start=start,
            num_tokens=count,
            drafts=sequence.drafts[: max(0, end - known)],
            logits_from=known - 1 if end >= known else -1,
            prompt_logits=scores and start < sequence.num_prompt - 1,
            table_from=table_from,
            table=table,
        )

    def plan(self) -> StepPlan | None:
        """What was collected, or ``None`` when nothing is to be computed."""
        if self.empty:
            return None
        return StepPlan(
            step=self.step,
            spans=tuple(self.spans),
            started=tuple(self.started),
            removed=tuple(self.removed),
            block_ops=tuple(self.ops),
        )
