"""logit-bias: bans, forces, adds, and refuses what is no token or no bias."""

import math

import pytest

from enginebay.errors import InvalidRequest
from enginebay.flow import SamplingParams

LOGITS = [0.0, 1.0, 2.0, -1.0]


def test_biases_are_added(left):
    """Keys may be numbers or their digits; the difference of logits is the bias."""
    plain, biased = left(LOGITS), left(LOGITS, logit_bias={"1": 2.5, 3: -1})
    assert math.log(biased[1] / biased[0]) == pytest.approx(
        math.log(plain[1] / plain[0]) + 2.5, abs=1e-5
    )
    assert math.log(biased[3] / biased[0]) == pytest.approx(-2.0, abs=1e-5)


def test_minus_100_bans(left):
    """However likely the token is."""
    assert set(left([0.0, 500.0, 1.0], logit_bias={1: -100})) == {0, 2}


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0, 100.0])
def test_plus_100_forces(left, temperature):
    """However unlikely the token is, and at every temperature (case 20)."""
    row = [90000.0, 0.0, -90000.0, 3.0]
    assert set(left(row, logit_bias={"2": 100}, temperature=temperature)) == {2}


def test_several_forced_tokens_keep_their_odds(left):
    """Among forced tokens the model decides."""
    forced = left([5.0, 1.0, 2.0], logit_bias={1: 100, 2: 100})
    assert set(forced) == {1, 2}
    assert math.log(forced[2] / forced[1]) == pytest.approx(1.0, abs=1e-3)


def test_a_forced_token_that_is_banned_forces_nothing(left):
    """A ban of another member wins, before or after; the row still draws."""
    row = [0.0, 1.0, 2.0]
    assert set(left(row, logit_bias={0: 100}, allowed_token_ids=[1, 2])) == {1, 2}
    before = left(row, logit_bias={0: 100}, min_tokens=2, end_ids=[0])
    assert set(before) == {1, 2}


def test_a_ban_after_the_force_leaves_the_others_in_play(shipped):
    """Whatever the order of the chain: forcing lowers the others, it does not ban them."""
    import torch

    members = dict(shipped(3).members)
    row = torch.tensor([0.0, 1.0, 2.0])

    class View:
        params = {"logit_bias": members["logit-bias"].parse("logit_bias", {0: 100.0}, 3)}

    members["logit-bias"].edit(row, View())
    assert row.isfinite().all()
    assert row[0] - row[2] > 9000


@pytest.mark.parametrize(
    "bias",
    [
        {"191222": -100},
        {"-1": 5},
        {-1: 5},
        {"4": 1},
        {"abc": 1},
        {"1.0": 1},
        {"²": 1},
        {"0" * 5000 + "1": 1},
        {True: 1},
        {"3": "x"},
        {"3": 1e9},
        {"3": 100.5},
        {"3": math.nan},
        {"3": math.inf},
        {"3": True},
        {"3": None},
        [3, 5],
        "3",
    ],
)
def test_wrong_ids_and_biases_are_refused(shipped, bias):
    """Case 20: a 400 that names the field, and a short message."""
    with pytest.raises(InvalidRequest) as caught:
        shipped(4).parse(SamplingParams(logit_bias=bias))
    assert caught.value.detail.param == "logit_bias"
    assert len(str(caught.value)) < 200


def test_a_key_of_many_digits_is_told_as_such(shipped):
    """Not as what Python's parser says about it."""
    with pytest.raises(InvalidRequest, match="is not a token id; keys are integers"):
        shipped(4).parse(SamplingParams(logit_bias={"0" * 5000 + "1": 1}))


def test_an_empty_object_is_neutral(shipped, view):
    """``{}`` is what clients send for nothing."""
    chain = shipped(4)
    request = view(chain, logit_bias={}, temperature=0)
    assert chain.greedy(request.params, request.sampling)
