"""penalties: which history each one reads, and what it does to a logit."""

import math

import pytest

from enginebay.errors import InvalidRequest
from enginebay.flow import SamplingParams

LOGITS = [2.0, -1.0, 0.5, 0.0, 1.0]


def _moved(left, **asked) -> list[float]:
    """How far each logit moved, against the last token, which no history holds."""
    plain, moved = left(LOGITS), left(LOGITS, **asked)
    return [
        round(math.log(moved[i] / moved[4]) - math.log(plain[i] / plain[4]), 4) for i in range(4)
    ]


def test_repetition_reads_prompt_and_output(left):
    """Positive logits are divided, others multiplied; each token once."""
    moved = _moved(left, prompt_ids=[0, 0, 3], output_ids=[1], repetition_penalty=2.0)
    assert moved == [-1.0, -1.0, 0.0, 0.0]


def test_presence_reads_the_output_once_a_token(left):
    """The prompt does not count."""
    moved = _moved(left, prompt_ids=[0], output_ids=[1, 2, 2], presence_penalty=0.75)
    assert moved == [0.0, -0.75, -0.75, 0.0]


def test_frequency_counts_the_output(left):
    """Once for each time."""
    moved = _moved(left, prompt_ids=[2], output_ids=(1, 2, 2, 2), frequency_penalty=0.5)
    assert moved == [0.0, -0.5, -1.5, 0.0]


def test_repetition_comes_first(left):
    """Scaling after subtracting would give another logit."""
    moved = _moved(left, output_ids=[0], repetition_penalty=2.0, presence_penalty=1.5)
    assert moved == [-2.5, 0.0, 0.0, 0.0]


def test_nothing_generated_yet(left):
    """An empty output is no history."""
    assert _moved(left, prompt_ids=[0], presence_penalty=2, frequency_penalty=2) == [0.0] * 4


def test_a_banned_token_stays_banned(left):
    """Scaling minus infinity leaves it there."""
    banned = left(LOGITS, output_ids=[0], repetition_penalty=0.5, allowed_token_ids=[1, 2])
    assert set(banned) == {1, 2}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("repetition_penalty", 1e30),
        ("presence_penalty", 2.01),
        ("presence_penalty", True),
        ("frequency_penalty", -2.01),
        ("frequency_penalty", math.nan),
        ("frequency_penalty", "1"),
    ],
)
def test_out_of_range_is_refused(shipped, name, value):
    """By name, with the range."""
    with pytest.raises(InvalidRequest, match=f"{name}: .* from ") as caught:
        shipped(4).parse(SamplingParams(**{name: value}))
    assert caught.value.detail.param == name
