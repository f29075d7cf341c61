"""Owned fields: who takes which, and how a request and a model's defaults are read."""

import pytest
from structlog.testing import capture_logs

from enginebay.errors import InvalidRequest, StackError
from enginebay.flow import SamplingParams
from enginebay.hookspecs.sampler import Field
from enginebay.sampling import Chain


class Last:
    """Draws the last candidate; owns two fields."""

    fields: tuple[Field, ...] = (
        Field(name="ban", type="integer", neutral=-1, minimum=-1, maximum=9),
        Field(name="keep", type="integer", neutral=0, minimum=0),
    )

    def parse(self, name, value, vocab_size):
        if value == 7:
            raise ValueError("seven is not to our taste")
        return value

    def active(self, params, sampling):
        return True

    def draw(self, candidates, view):
        return int(candidates.token_ids()[-1])


def _chain() -> Chain:
    return Chain([("last", Last())], 6)


def test_a_field_of_the_core_can_not_be_owned():
    """A plugin that took ``seed`` would never be asked for it."""
    greedy = Last()
    greedy.fields = (Field(name="seed", type="integer", neutral=0),)
    with pytest.raises(StackError, match="'last' owns the request field 'seed'"):
        Chain([("last", greedy)], 6)


def test_parse_gives_every_field():
    """Given, default, neutral; a request's null is "not given"."""
    chain = _chain()
    assert chain.parse(SamplingParams()) == {"ban": -1, "keep": 0}
    assert chain.parse(SamplingParams(ban=3, keep=None)) == {"ban": 3, "keep": 0}
    assert chain.parse(SamplingParams(ban=None), {"ban": 2, "keep": 4}) == {"ban": 2, "keep": 4}
    assert chain.parse(SamplingParams(ban=5), {"ban": 2})["ban"] == 5


@pytest.mark.parametrize(
    ("asked", "param", "told"),
    [
        ({"bann": 1}, "bann", "did you mean 'ban'"),
        ({"sed": 1}, "sed", "did you mean 'seed'"),
        ({"zzzzzz": False}, "zzzzzz", "no sampler of this stack takes this field$"),
        ({"ban": 10}, "ban", "10 is not accepted; it must be an integer from -1 to 9"),
        ({"ban": 1.5}, "ban", "an integer"),
        ({"ban": True}, "ban", "an integer"),
        ({"keep": -1}, "keep", "not below 0"),
        ({"ban": 7}, "ban", "seven is not to our taste"),
    ],
)
def test_parse_refuses_by_name(asked, param, told):
    """Promise P4: honoured or refused, never dropped; the message says what is allowed."""
    with pytest.raises(InvalidRequest, match=told) as caught:
        _chain().parse(SamplingParams(**asked))
    assert caught.value.detail.param == param


def test_an_unknown_null_is_nothing():
    """Clients send null for what they do not use."""
    assert _chain().parse(SamplingParams(no_such_field=None)) == {"ban": -1, "keep": 0}


def test_a_bad_default_is_dropped_with_one_warning():
    """A model's generation_config may not make every request fail (case 18)."""
    chain = _chain()
    generation = {"ban": 99, "keep": 2, "eos_token_id": [1, 2], "do_sample": True}
    with capture_logs() as logs:
        assert chain.parse(SamplingParams(), generation) == {"ban": -1, "keep": 2}
        assert chain.parse(SamplingParams(ban=1), generation) == {"ban": 1, "keep": 2}
        assert chain.defaults(generation) == {"keep": 2}
    assert [(log["log_level"], log["field"]) for log in logs] == [("warning", "ban")]
