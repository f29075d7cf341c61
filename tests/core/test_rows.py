"""Batches: what a plan becomes, and what a step of plain decoding keeps from the one before."""

import torch

from enginebay.flow import SamplingParams, SequenceStart, Span, StepPlan
from enginebay.rows import BatchMaker, Row

SIZE = 4


def row_of(number: int, length: int, blocks: tuple[int, ...]) -> Row:
    """A sequence of so many tokens, with a block table."""
    start = SequenceStart(
        sequence_id=number,
        request_id=f"r{number}",
        index=0,
        token_ids=tuple(range(100 * number, 100 * number + length)),
        num_prompt=length,
        sampling=SamplingParams(),
        seed=0,
    )
    row = Row(start, {}, frozenset(), greedy=True)
    row.set_table(0, blocks)
    return row


def decoding(rows: dict[int, Row]) -> StepPlan:
    """The last known token of every sequence."""
    spans = [
        Span(
            sequence_id=number,
            start=len(row.token_ids) - 1,
            num_tokens=1,
            logits_from=len(row.token_ids) - 1,
        )
        for number, row in rows.items()
    ]
    return StepPlan(step=0, spans=tuple(spans))


def grow(rows: dict[int, Row]) -> None:
    """One more token each."""
    for row in rows.values():
        row.token_ids.append(7)


def test_a_decode_step_lays_out_one_row_of_each_sequence():
    """Tokens, positions, contexts, slots and logit rows are those of the last tokens."""
    rows = {1: row_of(1, 6, (5, 9)), 2: row_of(2, 3, (2,))}
    batch = BatchMaker(SIZE, "cpu").make(decoding(rows), rows)
    assert batch.token_ids.tolist() == [105, 202]
    assert batch.positions.tolist() == [5, 2]
    assert batch.contexts.tolist() == [6, 3]
    assert batch.row_starts.tolist() == [0, 1, 2]
    assert batch.logit_rows.tolist() == [0, 1]
    assert batch.tables.tolist() == [[5, 9], [2, 0]]
    assert batch.slots.tolist() == [9 * SIZE + 1, 2 * SIZE + 2]
    kinds = (batch.token_ids, batch.positions, batch.slots, batch.logit_rows)
    assert {each.dtype for each in kinds} == {torch.int64}
    assert {each.dtype for each in (batch.contexts, batch.row_starts, batch.tables)} == {
        torch.int32
    }


def test_steps_in_a_row_give_what_a_new_maker_would():
    """Kept tables follow growth inside what was reserved, changes, and who takes part."""
    rows = {
        1: row_of(1, 6, (5, 9)),
        2: row_of(2, 3, (2, 3, 4)),  # blocks ahead of its tokens
        3: row_of(3, 13, (10, 11, 12, 13)),
    }
    maker = BatchMaker(SIZE, "cpu")
    for step in range(8):
        if step == 3:
            rows[1].set_table(2, (20, 21))
        if step == 5:
            rows[2].set_table(1, (30,))  # written on elsewhere
        if step == 6:
            del rows[3]
        kept, fresh = maker.make(decoding(rows), rows), BatchMaker(SIZE, "cpu")
        for ours, theirs in zip(
            kept.tensors(), fresh.make(decoding(rows), rows).tensors(), strict=True
        ):
            assert torch.equal(ours, theirs), step
        grow(rows)


def test_a_step_that_decodes_is_laid_out_where_the_last_one_was():
    """Only a changed block table makes other tensors; the tables before stay as they were."""
    rows = {1: row_of(1, 4, (5,)), 2: row_of(2, 2, (6,))}
    rows[1].set_table(1, (8,))
    maker = BatchMaker(SIZE, "cpu")
    first = maker.make(decoding(rows), rows)
    grow(rows)
    batch, tables = maker.make(decoding(rows), rows), first.tables.clone()
    assert batch is not first or first.contexts.tolist() == [5, 3]
    grow(rows)
    assert maker.make(decoding(rows), rows) is batch
    rows[2].set_table(0, (9,))
    moved = maker.make(decoding(rows), rows)
    assert moved is not batch
    assert torch.equal(first.tables, tables)
    assert moved.tables[1, 0] == 9
    assert len(maker.buffers()) == 7


def test_a_step_with_a_longer_span_gives_the_same_rows_for_the_others():
    """A prompt beside them changes neither slots nor tables of those that decode."""
    rows = {1: row_of(1, 6, (5, 9)), 2: row_of(2, 7, (2, 3))}
    maker = BatchMaker(SIZE, "cpu")
    alone = maker.make(decoding(rows), rows)
    first, second = decoding(rows).spans
    whole = Span(sequence_id=2, start=4, num_tokens=3, logits_from=6)
    mixed = maker.make(StepPlan(step=1, spans=(first, whole)), rows)
    assert mixed.slots.tolist() == [alone.slots[0], 3 * SIZE, 3 * SIZE + 1, 3 * SIZE + 2]
    assert mixed.slots[-1] == alone.slots[1]
    assert mixed.logit_rows.tolist() == [0, 3]
    assert torch.equal(mixed.tables, alone.tables)
    assert second.start == 6
