"""Log-probabilities of one row: values, ranks and alternatives, by the definition."""

import math

import pytest
import torch

from enginebay.candidates import Candidates
from enginebay.logprobs import scored

ROW = torch.randn(5000, generator=torch.Generator().manual_seed(2)) * 3


@pytest.mark.parametrize("token_id", [0, 17, 4999])
def test_a_token_has_its_logarithm_and_its_rank(token_id):
    """Of the softmax of the whole row."""
    token = scored(ROW, token_id, 0).token
    expected = float(torch.log_softmax(ROW.double(), 0)[token_id])
    assert token.logprob == pytest.approx(expected, abs=5e-6)
    assert token.rank == 1 + int((ROW[token_id] < ROW).sum())


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_alternatives_are_the_best_in_order(count):
    """As many as were asked for, ranked from 1."""
    top = scored(ROW, 3, count).top
    best = torch.topk(ROW, count)
    assert [entry.token_id for entry in top] == best.indices.tolist()
    assert [entry.rank for entry in top] == list(range(1, count + 1))
    logprobs = torch.log_softmax(ROW.double(), 0)[best.indices].tolist()
    assert [entry.logprob for entry in top] == pytest.approx(logprobs, abs=5e-6)


def test_processed_ones_are_of_what_was_left():
    """Two of four candidates left: their odds alone count; another token has none."""
    left = Candidates(torch.tensor([1.0, 2.0]), torch.tensor([3, 7]))
    found = scored(ROW, 7, 5, left)
    assert found.token.logprob == pytest.approx(-math.log1p(math.exp(-1.0)), abs=1e-6)
    assert [entry.token_id for entry in found.top] == [7, 3]
    assert scored(ROW, 5, 0, left).token.logprob == -math.inf


def test_large_logits_do_not_overflow():
    """The largest is taken off first."""
    row = torch.tensor([3e38, 3e38, -3e38])
    assert scored(row, 1, 0).token.logprob == pytest.approx(-math.log(2.0))
