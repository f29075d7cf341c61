"""Candidates: narrowing keeps the right tokens, and ties go to the lower id."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enginebay.candidates import Candidates, first_best

LOGITS = st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=30)


def _pairs(candidates: Candidates) -> list[tuple[int, float]]:
    return list(zip(candidates.token_ids().tolist(), candidates.logits.tolist(), strict=True))


def _expected(logits: list[float], count: int) -> list[tuple[int, float]]:
    return sorted(enumerate(logits), key=lambda pair: (-pair[1], pair[0]))[:count]


@given(LOGITS, st.integers(1, 40))
def test_best_of_a_row(logits, count):
    """The best come ordered, and of equals the lower ids stay."""
    best = Candidates(torch.tensor(logits)).best(count)
    assert best.ordered
    assert _pairs(best) == _expected(logits, count)


@given(LOGITS, st.integers(1, 40), st.integers(1, 40))
def test_best_of_the_best(logits, first, second):
    """Narrowing twice is narrowing once to the smaller."""
    twice = Candidates(torch.tensor(logits)).best(first).best(second)
    assert _pairs(twice) == _expected(logits, min(first, second))


@given(LOGITS, st.data())
def test_best_of_some_ids(logits, data):
    """After a filter the ids are still those of the vocabulary."""
    keep = data.draw(st.lists(st.booleans(), min_size=len(logits), max_size=len(logits)))
    left = Candidates(torch.tensor(logits)).where(torch.tensor(keep))
    count = data.draw(st.integers(1, 10))
    masked = [logit if kept else -torch.inf for logit, kept in zip(logits, keep, strict=True)]
    assert _pairs(left.best(count)) == _expected(masked, min(count, sum(keep)))


@given(LOGITS, st.integers(1, 40))
def test_largest_are_the_values_of_the_best(logits, count):
    """Values alone equal the values that come with ids."""
    row = Candidates(torch.tensor(logits))
    assert row.largest(count).tolist() == row.best(count).logits.tolist()
    assert row.sorted().largest(count).tolist() == row.best(count).logits.tolist()


@given(LOGITS)
def test_first_is_the_best_alone(logits):
    """One candidate: the largest, of equals the lowest id; ordered or not."""
    row = Candidates(torch.tensor(logits))
    assert _pairs(row.first()) == _expected(logits, 1)
    assert _pairs(row.sorted().first()) == _expected(logits, 1)


def test_best_leaves_banned_tokens_out():
    """With fewer than asked for still allowed, banned tokens do not fill up the rest."""
    row = Candidates(torch.tensor([-torch.inf, 1.0, -torch.inf, 2.0, -torch.inf]))
    assert _pairs(row.best(4)) == [(3, 2.0), (1, 1.0)]


def test_cut_takes_the_lowest_ids_at_the_edge():
    """Above the edge all, at the edge as many as told, from the lowest id."""
    row = Candidates(torch.tensor([1.0, 3.0, 1.0, 0.0, 1.0]))
    assert _pairs(row.cut(1.0, 2)) == [(0, 1.0), (1, 3.0), (2, 1.0)]
    assert _pairs(row.cut(1.0, 0)) == [(1, 3.0)]
    assert _pairs(row.sorted().cut(1.0, 1)) == [(1, 3.0), (0, 1.0)]


def test_scaled_does_not_overflow():
    """Large logits over a small temperature stay finite at the top (case 17)."""
    scaled = Candidates(torch.tensor([3e38, 1e38, -torch.inf])).scaled(1e5)
    assert scaled.logits[0] == 0.0
    assert not torch.isnan(scaled.logits).any()


def test_nothing_is_changed_in_place():
    """The row stays what it was, whatever is asked of it."""
    logits = torch.tensor([0.5, 2.0, -1.0])
    row = Candidates(logits)
    row.best(2), row.scaled(2.0), row.cut(0.5, 1), row.where(logits > 0), row.sorted()
    assert logits.tolist() == [0.5, 2.0, -1.0]


@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_first_best_counts_nan_as_largest(shape):
    """A NaN anywhere in a row is where its search ends."""
    rows = torch.zeros(shape)
    rows[..., 2] = torch.nan
    assert first_best(rows).tolist() == ([2, 2] if len(shape) == 2 else 2)
