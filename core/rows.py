"""Rows: what an executor remembers of each sequence, and how plans become batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from .batch import Batch

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


class Places(NamedTuple):
    """What every step of S sequences with one row each has in common."""

    numbers: np.ndarray
    """int64 [S]: 0, 1, 2 ..."""
    row_starts: torch.Tensor
    """int32 [S + 1], the same on the device"""
    logit_rows: torch.Tensor
    """int64 [S], the same on the device"""


class BatchMaker:
    """Lays out plans as batches, on one device. Batches share tensors: they are read only."""

    def __init__(self, block_size: int, device: str) -> None:
        self._block_size = block_size
        self._device = device
        self._places: dict[int, Places] = {}
        """By the number of sequences."""
        self._table_rows: list[Row] = []
        """Whose block tables the last step had."""
        self._tables = np.zeros((0, 0), dtype=np.int32)
        self._table_states: list[tuple[int, int]] = []
        """Of each row of the last tables: changes until then, and entries in use."""

    def make(self, plan: StepPlan, rows: Mapping[int, Row]) -> Batch:
        """Every span's rows, in the plan's order. Block tables must be up to date."""
        spans = plan.spans
        if all(span.num_tokens == 1 and span.logits_from >= 0 for span in spans):
            return self._decode(
                [span.start for span in spans], [rows[s.sequence_id] for s in spans]
            )
        counts = np.array([span.num_tokens for span in spans], dtype=np.int64)
        starts = np.array([span.start for span in spans], dtype=np.int64)
        row_starts = np.zeros(len(spans) + 1, dtype=np.int32)
        np.cumsum(counts, out=row_starts[1:])
        owners = np.repeat(np.arange(len(spans)), counts)
        offsets = np.arange(len(owners)) - row_starts[owners]
        positions = starts[owners] + offsets
        contexts = (starts + counts).astype(np.int32)
        tables = self._filled([rows[span.sequence_id] for span in spans], contexts)
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
        return tuple(
            each
            for places in self._places.values()
            for each in (places.row_starts, places.logit_rows)
        )

    def _decode(self, starts: list[int], rows: list[Row]) -> Batch:
        """One row of each sequence, and logits of each: most steps are such."""
        positions = np.array(starts, dtype=np.int64)
        contexts = (positions + 1).astype(np.int32)
        tables = self._filled(rows, contexts)
        places = self._places.get(len(rows)) or self._placed(len(rows))
        blocks, offsets = np.divmod(positions, self._block_size)
        slots = tables[places.numbers, blocks] * np.int64(self._block_size) + offsets
        ids = [row.token_ids[start] for row, start in zip(rows, starts, strict=True)]
        return Batch(
            token_ids=self._tensor(np.array(ids, dtype=np.int64)),
            positions=self._tensor(positions),
            row_starts=places.row_starts,
            contexts=self._tensor(contexts),
            tables=self._tensor(tables),
            slots=self._tensor(slots),
            logit_rows=places.logit_rows,
            block_size=self._block_size,
        )

    def _placed(self, count: int) -> Places:
        numbers = np.arange(count, dtype=np.int64)
        row_starts = self._tensor(np.arange(count + 1, dtype=np.int32))
        places = self._places[count] = Places(numbers, row_starts, self._tensor(numbers))
        return places

    def _filled(self, rows: list[Row], contexts: np.ndarray) -> np.ndarray:
        """The block tables. Rows stay as they were in the last step's where they can."""
        used = (-(-contexts // self._block_size)).tolist()
        width, states = max(used), [(row.changes, n) for row, n in zip(rows, used, strict=True)]
        same = width == self._tables.shape[1] and rows == self._table_rows
        if same and states == self._table_states:
            return self._tables
        tables = self._tables.copy() if same else np.zeros((len(rows), width), dtype=np.int32)
        before = self._table_states if same else [(-1, 0)] * len(rows)
        for number, (state, known) in enumerate(zip(states, before, strict=True)):
            if state != known:
                filled = state[1]
                tables[number, :filled] = rows[number].table[:filled]
                tables[number, filled:] = 0
        self._tables, self._table_rows, self._table_states = tables, rows, states
        return tables

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
