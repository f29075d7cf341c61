"""temperature: tiny values are greedy and finite, one leaves the row alone."""

import math

import pytest
import torch

from enginebay.errors import InvalidRequest
from enginebay.flow import SamplingParams

ROW = torch.randn(300, generator=torch.Generator().manual_seed(3)) * 5


@pytest.mark.parametrize("value", [0, 1e-3, 1e-4, 1e-5, 1e-8, 1e-38, 5e-324])
@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_tiny_temperatures_are_greedy(left, value, scale):
    """Case 17: the token of temperature 0, no NaN, whatever the logits' size."""
    assert left(ROW * scale, temperature=value) == {int(ROW.argmax()): 1.0}


def test_equal_best_logits_at_zero(left):
    """The lowest id, always."""
    assert left([1.0, 3.0, 3.0], temperature=0.0) == {1: 1.0}


@pytest.mark.parametrize("value", [0.5, 1.3, 2.0, 100.0])
def test_logits_are_divided(left, value):
    """The odds of two tokens are their difference over the temperature."""
    chances = left([1.0, 3.0, -2.0], temperature=value)
    assert math.log(chances[1] / chances[0]) == pytest.approx(2.0 / value, rel=1e-4)


def test_a_banned_token_stays_banned_when_hot(left):
    """Minus infinity times a small factor is still minus infinity."""
    assert set(left([0.0, 1.0, 2.0], temperature=100, logit_bias={1: -100})) == {0, 2}


@pytest.mark.parametrize("value", [-0.1, 100.1, math.nan, math.inf, "1", True, None])
def test_what_is_no_temperature_is_refused(shipped, value):
    """``None`` is "not given"."""
    request = SamplingParams(temperature=value)
    if value is None:
        assert shipped(4).parse(request)["temperature"] == 1.0
        return
    with pytest.raises(InvalidRequest, match="temperature: "):
        shipped(4).parse(request)


def test_zero_is_drawn_at_once(shipped, view):
    """With later shapes too: they see one candidate."""
    chain = shipped(300)
    for asked in ({}, {"top_p": 0.5}, {"top_k": 9, "min_p": 0.1}):
        request = view(chain, temperature=0, **asked)
        assert chain.greedy(request.params, request.sampling)
        assert chain.draw(ROW, request).token_id == chain.draw_greedy(ROW[None])[0]
    for asked in ({}, {"temperature": 0.5}, {"temperature": 0.7, "top_k": 1}):
        request = view(chain, **asked)
        assert not chain.greedy(request.params, request.sampling)
