"""Rows: what an executor remembers of each sequence, and how plans become batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .batch import Batch
from .decode_step import DecodeStep
from .tables import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .flow import SamplingParams, SequenceStart, Span, StepPlan

_FIRST_TABLE = 16
"""Block-table entries that a new sequence gets room for; doubled when it grows."""


class Row:
    """One sequence as the executor knows it: its tokens and its block table."""

    __slots__ = (
        "changes", "end_ids", "greedy", "index", "num_prompt", "params", "prompt_ids",
        "sampling", "seed", "table", "token_ids",
    )  # fmt: skip

    def __init__(
        self,
        start: SequenceStart,
        params: Mapping[str, Any],
        end_ids: frozenset[int],
        *,
        greedy: bool,
    ) -> None:
        self.token_ids = list(start.token_ids)
        self.num_prompt = start.num_prompt
        self.prompt_ids = start.token_ids[: start.num_prompt]
        self.sampling: SamplingParams = start.sampling
        self.seed = start.seed
        self.index = start.index
        self.params = params
        self.end_ids = end_ids
        self.greedy = greedy
        self.table = np.zeros(_FIRST_TABLE, dtype=np.int32)
        self.changes = 0
        """How often its table was changed."""

    def set_table(self, first: int, block_ids: tuple[int, ...]) -> None:
        """Entries from ``first`` on are now ``block_ids``."""
        end = first + len(block_ids)
        if end > len(self.table):
            grown = np.zeros(max(end, 2 * len(self.table)), dtype=np.int32)
            grown[: len(self.table)] = self.table
            self.table = grown
        self.table[first:end] = block_ids
        self.changes += 1


class BatchMaker:
    """Lays out plans as batches, on one device. A batch is good until the next is made."""

    def __init__(self, block_size: int, device: str) -> None:
        self._block_size = block_size
        self._device = device
        self._tables = Tables()
        self._decodes: dict[int, DecodeStep] = {}
        """By the number of sequences."""

    def make(self, plan: StepPlan, rows: Mapping[int, Row]) -> Batch:
        """Every span's rows, in the plan's order. Block tables must be up to date."""
        spans = plan.spans
        if all(span.num_tokens == 1 and span.logits_from >= 0 for span in spans):
            return self._decode(
                [rows[span.sequence_id] for span in spans], [span.start for span in spans]
            )
        counts = np.array([span.num_tokens for span in spans], dtype=np.int64)
        starts = np.array([span.start for span in spans], dtype=np.int64)
        row_starts = np.zeros(len(spans) + 1, dtype=np.int32)
        np.cumsum(counts, out=row_starts[1:])
        owners = np.repeat(np.arange(len(spans)), counts)
        offsets = np.arange(len(owners)) - row_starts[owners]
        positions = starts[owners] + offsets
        contexts = (starts + counts).astype(np.int32)
        used = (-(-contexts // self._block_size)).tolist()
        tables = self._tables.fill([rows[span.sequence_id] for span in spans], used)
        blocks = tables[owners, positions // self._block_size].astype(np.int64)
        return Batch(
            token_ids=self._tensor(self._token_ids(spans, rows, len(owners))),
            positions=self._tensor(positions),
            row_starts=self._tensor(row_starts),
            contexts=self._tensor(contexts),
            tables=self._tensor(tables),
            slots=self._tensor(blocks * self._block_size + positions % self._block_size),
            logit_rows=self._tensor(self._logit_rows(spans, row_starts)),
            block_size=self._block_size,
        )

    def buffers(self) -> tuple[torch.Tensor, ...]:
        """Tensors that are kept between steps, for the ledger."""
        return tuple(each for step in self._decodes.values() for each in step.tensors())

    def _decode(self, rows: list[Row], starts: list[int]) -> Batch:
        """One row of each sequence, and logits of each: most steps are such."""
        size, count = self._block_size, len(rows)
        tables = self._tables.fill(rows, [start // size + 1 for start in starts])
        step = self._decodes.get(count)
        if step is None:
            step = self._decodes[count] = DecodeStep(count, size, self._device)
        ids = [row.token_ids[start] for row, start in zip(rows, starts, strict=True)]
        return step.batch(ids, starts, tables, self._tables.last)

    @staticmethod
    def _token_ids(spans: tuple[Span, ...], rows: Mapping[int, Row], total: int) -> np.ndarray:
        ids = np.empty(total, dtype=np.int64)
        place = 0
        for span in spans:
            known = span.num_tokens - len(span.drafts)
            row = rows[span.sequence_id]
            ids[place : place + known] = row.token_ids[span.start : span.start + known]
            place += known
            if span.drafts:
                ids[place : place + len(span.drafts)] = span.drafts
                place += len(span.drafts)
        return ids

    @staticmethod
    def _logit_rows(spans: tuple[Span, ...], row_starts: np.ndarray) -> np.ndarray:
        wanted: list[int] = []
        for span, first in zip(spans, row_starts.tolist(), strict=False):
            if span.prompt_logits:
                wanted.extend(range(first, first + span.num_tokens))
            elif span.logits_from >= 0:
                wanted.extend(range(first + span.logits_from - span.start, first + span.num_tokens))
        return np.array(wanted, dtype=np.int64)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._device == "cpu" else tensor.to(self._device, non_blocking=True)
