"""The runner: a step plan becomes a batch, logits, and a step result."""

from __future__ import annotations

import time
from itertools import groupby
from typing import TYPE_CHECKING, Any

import structlog
import torch

from .errors import EnginebayError
from .flow import SequenceResult, StepResult
from .hookspecs.sampler import RowView
from .logprobs import scored
from .rows import BatchMaker, Row
from .sampling import RowError, TransformError
from .sequence import end_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .flow import BlockOp, SamplingParams, Span, StepPlan, TokenLogprob
    from .hookspecs.kernel import Attention
    from .hookspecs.model import Decoder, Limits
    from .sampling import Chain

log = structlog.get_logger(__name__)


class Runner:
    """Runs plans on one device, in order. Knows tokens, tables and noise; no policy."""

    def __init__(
        self,
        *,
        decoder: Decoder,
        attention: Attention,
        chain: Chain,
        limits: Limits,
        eos_token_ids: tuple[int, ...],
        device: str,
    ) -> None:
        self.decoder = decoder
        self.attention = attention
        self.chain = chain
        self.rows: dict[int, Row] = {}
        self.tap: Callable[[StepPlan, torch.Tensor], None] | None = None
        """Shown every step's logits before sampling; for conformance and debugging."""
        self._eos_token_ids = frozenset(eos_token_ids)
        self._batches = BatchMaker(limits.block_size, device)

    def run(self, plan: StepPlan) -> StepResult:
        """Compute a plan: forget, start, move blocks, forward, sample."""
        began = time.perf_counter()
        self._apply(plan)
        with torch.inference_mode():
            logits = self.decoder.forward(self._batches.make(plan, self.rows), self.attention)
            if self.tap is not None:
                self.tap(plan, logits)
            outputs = self._outputs(plan, logits)
        return StepResult(step=plan.step, outputs=outputs, duration=time.perf_counter() - began)

    def buffers(self) -> tuple[torch.Tensor, ...]:
        """Tensors that are kept between steps, for the ledger."""
        return self._batches.buffers()

    def _apply(self, plan: StepPlan) -> None:
        for sequence_id in plan.removed:
            self.rows.pop(sequence_id, None)
        for start in plan.started:
            params = self.chain.parse(start.sampling)
            ends = end_ids(start.sampling, self._eos_token_ids)
            greedy = self._is_greedy(params, start.sampling)
            self.rows[start.sequence_id] = Row(start, params, ends, greedy=greedy)
        for span in plan.spans:
            if span.table:
                self.rows[span.sequence_id].set_table(span.table_from, span.table)
        self._move(plan.block_ops)

    def _is_greedy(self, params: Mapping[str, Any], sampling: SamplingParams) -> bool:
        try:
            return self.chain.greedy(params, sampling)
        except TransformError:
            return False  # the draw will raise it again, where it ends this sequence alone

    def _move(self, ops: tuple[BlockOp, ...]) -> None:
        """Runs of one kind go together; their order is kept."""
        store = self.attention.store
        for kind, run in groupby(ops, key=lambda op: op.kind):
            {"copy": store.copy, "save": store.save, "load": store.load}[kind](tuple(run))

    def _outputs(self, plan: StepPlan, logits: torch.Tensor) -> tuple[SequenceResult, ...]:
        if logits.shape[0] == len(plan.spans) and all(map(self._is_plain, plan.spans)):
            tokens = self.chain.draw_greedy(logits)
            return tuple(map(self._plain_output, plan.spans, tokens))
        outputs = []
        place = 0
        drawn_at_once = self._draw_greedy(plan, logits)
        for span in plan.spans:
            token = drawn_at_once.get(span.sequence_id)
            if token is not None and self._is_plain(span):
                outputs.append(self._plain_output(span, token))
                place += 1
                continue
            first_drawn = span.num_tokens if span.logits_from < 0 else span.logits_from - span.start
            if span.prompt_logits:
                share = logits[place : place + span.num_tokens]
            elif span.logits_from >= 0:
                share = logits[place : place + span.num_tokens - first_drawn]
                first_drawn = 0
            else:
                continue
            place += share.shape[0]
            outputs.append(self._output(span, share, first_drawn, drawn_at_once))
        return tuple(outputs)

    def _is_plain(self, span: Span) -> bool:
        """Whether the best token of one row of logits is all that is wanted."""
        row = self.rows[span.sequence_id]
        wanted = span.logits_from >= 0 and not (span.drafts or span.prompt_logits)
        return wanted and row.greedy and row.sampling.logprobs is None

    def _plain_output(self, span: Span, token: int | RowError) -> SequenceResult:
        if isinstance(token, RowError):
            return self._failed(span, token)
        self.rows[span.sequence_id].token_ids.append(token)
        return SequenceResult(sequence_id=span.sequence_id, token_ids=(token,))

    def _draw_greedy(self, plan: StepPlan, logits: torch.Tensor) -> dict[int, int | RowError]:
        """Tokens of all plain greedy rows, when nothing else is in the step: one argmax."""
        spans = [span for span in plan.spans if span.logits_from >= 0 or span.prompt_logits]
        rows = self.rows
        places = [
            number
            for number, span in enumerate(spans)
            if rows[span.sequence_id].greedy and not span.drafts and not span.prompt_logits
        ]
        if not places or len(spans) != logits.shape[0]:
            return {}
        chosen = logits if len(places) == logits.shape[0] else logits[places]
        tokens = self.chain.draw_greedy(chosen)
        return {spans[p].sequence_id: token for p, token in zip(places, tokens, strict=True)}

    def _output(
        self,
        span: Span,
        logits: torch.Tensor,
        first_drawn: int,
        drawn_at_once: dict[int, int | RowError],
    ) -> SequenceResult:
        """Sample one span. ``logits[first_drawn:]`` are those of the rows to draw from."""
        row = self.rows[span.sequence_id]
        try:
            prompt_logprobs = self._prompt_scores(row, span, logits) if span.prompt_logits else ()
            tokens: list[int] = []
            logprobs: list[TokenLogprob] = []
            known = drawn_at_once.get(span.sequence_id)
            for number, line in enumerate(logits[first_drawn:]):
                if isinstance(known, RowError):
                    raise known
                token = self._draw(row, line, logprobs, known)
                tokens.append(token)
                if number >= len(span.drafts) or token != span.drafts[number]:
                    break
        except EnginebayError as error:
            return self._failed(span, error)
        return SequenceResult(
            sequence_id=span.sequence_id,
            token_ids=tuple(tokens),
            logprobs=tuple(logprobs) if row.sampling.logprobs is not None else None,
            prompt_logprobs=prompt_logprobs,
        )

    def _draw(
        self, row: Row, line: torch.Tensor, logprobs: list[TokenLogprob], known: int | None
    ) -> int:
        """Draw the next token of a row and append it: the next draft is judged after it."""
        sampling = row.sampling
        candidates = None
        if known is None:
            view = RowView(
                params=row.params,
                sampling=sampling,
                prompt_ids=row.prompt_ids,
                output_ids=row.token_ids[row.num_prompt :],
                position=len(row.token_ids),
                index=row.index,
                seed=row.seed,
                end_ids=row.end_ids,
            )
            known, candidates = self.chain.draw(line, view)
        if sampling.logprobs is not None:
            logprobs.append(scored(line, known, sampling.logprobs, candidates))
        row.token_ids.append(known)
        return known

    def _prompt_scores(
        self, row: Row, span: Span, logits: torch.Tensor
    ) -> tuple[TokenLogprob, ...]:
        count = row.sampling.prompt_logprobs or 0
        last = min(span.start + span.num_tokens, row.num_prompt - 1)
        return tuple(
            scored(logits[position - span.start], row.token_ids[position + 1], count)
            for position in range(span.start, last)
        )

    def _failed(self, span: Span, error: EnginebayError) -> SequenceResult:
        plugin = error.plugin if isinstance(error, TransformError) else None
        log.warning("a sequence failed", sequence_id=span.sequence_id, error=str(error))
        return SequenceResult(sequence_id=span.sequence_id, error=str(error), plugin=plugin)
