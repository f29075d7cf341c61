"""top-k, top-p, min-p: what stays, at the edges and at scale."""

import math

import pytest
import torch

from enginebay.conformance.sampler_reference import probabilities
from enginebay.errors import InvalidRequest
from enginebay.flow import SamplingParams

FLAT = [0.0] * 10
CHANCES = [0.5, 0.25, 0.125, 0.0625, 0.0625]
ROW = [math.log(chance) for chance in CHANCES]


@pytest.mark.parametrize("value", [0, -1, 10, 11, 10**12])
def test_top_k_values_that_keep_all(shipped, view, left, value):
    """Case 18: 0, -1 and the vocabulary's size or more disable; nothing runs."""
    chain = shipped(10)
    assert view(chain, top_k=value).params["top_k"] == 0
    assert set(left(FLAT, top_k=value)) == set(range(10))


def test_flat_logits_draw_many_or_one(shipped, view):
    """Case 18: with seeds 0 to 199 top_k 0 yields many tokens, top_k 1 exactly one."""
    chain, row = shipped(10), torch.zeros(10)
    for top_k, distinct in ((0, 10), (1, 1), (3, 3)):
        drawn = {
            chain.draw(row, view(chain, top_k=top_k, seed=seed)).token_id for seed in range(200)
        }
        assert drawn == set(range(distinct))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("top_k", value) for value in (-2, 1.5, 2.0, True, "5", math.nan)),
        *(("top_p", value) for value in (0, 0.0, -0.1, 1.0001, True, "1", math.nan)),
        *(("min_p", value) for value in (-0.1, 1.1, False, math.inf)),
    ],
)
def test_out_of_range_is_refused(shipped, name, value):
    """Case 18; top_p 0 is refused too, as its documentation says."""
    with pytest.raises(InvalidRequest, match=f"{name}: "):
        shipped(10).parse(SamplingParams(**{name: value}))


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(1e-4, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.9, 4), (0.94, 5), (0.999, 5)],
)
def test_top_p_keeps_the_token_that_reaches_it(left, top_p, kept):
    """The smallest set whose mass is at least top_p, the last token included."""
    assert set(left(ROW, top_p=top_p)) == set(range(kept))


def test_top_p_keeps_the_lower_ids_of_equals(left):
    """Ten equal tokens at 0.35: four of them, the lowest."""
    assert set(left(FLAT, top_p=0.35)) == {0, 1, 2, 3}


@pytest.mark.parametrize("spread", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999, math.nextafter(1, 0)])
def test_top_p_over_a_large_vocabulary(left, spread, top_p):
    """Beyond the head that is ordered first, the set is still the exact one."""
    for seed in range(4):
        row = torch.randn(6000, generator=torch.Generator().manual_seed(seed)) * spread
        expected = probabilities(row.numpy(), {"top_p": top_p})
        found = left(row, top_p=top_p)
        wanted = int((expected > 1e-12).sum())
        assert abs(len(found) - wanted) <= wanted * 1e-3
        assert max(found, key=found.get) == int(row.argmax())


def test_top_p_of_what_top_k_left(left):
    """Each filter works on the distribution that the one before it left."""
    assert set(left(ROW, top_k=2, top_p=0.66)) == {0}
    assert set(left(ROW, top_k=2, top_p=0.68)) == {0, 1}


@pytest.mark.parametrize(("min_p", "kept"), [(0.0, 5), (0.1, 5), (0.13, 4), (0.3, 2), (1.0, 1)])
def test_min_p_is_relative_to_the_best(left, min_p, kept):
    """Tokens of at least so large a share of the best one's probability."""
    row = [math.log(chance) for chance in (0.5, 0.25, 0.1, 0.0875, 0.0625)]
    assert set(left(row, min_p=min_p)) == set(range(kept))


def test_min_p_one_keeps_equals(left):
    """All that are as likely as the best."""
    assert set(left([1.0, 2.0, 2.0], min_p=1.0)) == {1, 2}


@pytest.mark.parametrize("asked", [{"top_k": 4}, {"top_p": 0.9999}, {"min_p": 1e-6}])
def test_banned_tokens_are_never_kept(left, asked):
    """A filter does not fill up with tokens that an edit banned."""
    assert set(left(FLAT, allowed_token_ids=[2, 7], **asked)) == {2, 7}
