"""Batches made by hand, for checks that run a decoder or an attention kernel alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from enginebay.batch import Batch


@dataclass(frozen=True)
class Stretch:
    """Positions ``start ..`` of one sequence, whose tokens up to there are known."""

    token_ids: Sequence[int]
    """From position 0 to the last one computed."""
    start: int
    table: Sequence[int]
    """Block ids by block number."""
    logits_from: int | None = None
    """First position whose logits are wanted; ``None``: ``start``."""


def make_batch(stretches: Sequence[Stretch], block_size: int, device: str = "cpu") -> Batch:
    """One step over some sequences, as tensors on ``device``."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    row_starts = [0]
    for stretch in stretches:
        span = range(stretch.start, len(stretch.token_ids))
        wanted = stretch.start if stretch.logits_from is None else stretch.logits_from
        first = row_starts[-1] - stretch.start
        logit_rows += [first + position for position in span if position >= wanted]
        token_ids += stretch.token_ids[stretch.start :]
        positions += span
        slots += [_slot(stretch.table, position, block_size) for position in span]
        row_starts.append(row_starts[-1] + len(span))
    width = max(len(stretch.table) for stretch in stretches)
    tables = [[*stretch.table, *[0] * (width - len(stretch.table))] for stretch in stretches]
    contexts = [len(stretch.token_ids) for stretch in stretches]
    return Batch(
        token_ids=torch.tensor(token_ids, dtype=torch.int64, device=device),
        positions=torch.tensor(positions, dtype=torch.int64, device=device),
        row_starts=torch.tensor(row_starts, dtype=torch.int32, device=device),
        contexts=torch.tensor(contexts, dtype=torch.int32, device=device),
        tables=torch.tensor(tables, dtype=torch.int32, device=device),
        slots=torch.tensor(slots, dtype=torch.int64, device=device),
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=device),
        block_size=block_size,
    )


def _slot(table: Sequence[int], position: int, block_size: int) -> int:
    return table[position // block_size] * block_size + position % block_size
