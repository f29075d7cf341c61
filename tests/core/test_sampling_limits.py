"""Limits of the core's own sampling fields."""

import math

import msgspec
import pytest

from enginebay.errors import InvalidRequest
from enginebay.flow import SamplingParams
from enginebay.hookspecs.sampler import Field
from enginebay.sampling_limits import MAX_STOP_CHARACTERS, check_core, check_value

VOCAB = 100


def _refused(**fields) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check_core(SamplingParams(**fields), VOCAB)
    return caught.value


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**63 - 1, None])
def test_seeds_of_64_bits_pass(seed):
    """Every int64 is a seed, and none at all is fine (case 19)."""
    check_core(SamplingParams(seed=seed), VOCAB)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("seed", value) for value in (2**63, -(2**63) - 1, 2**64, 10**30, 1.5, "7", True)),
        *(("n", value) for value in (0, -1, 129, 10**6, 1.0, True, None)),
        *(("max_tokens", value) for value in (-1, 1.5, "8", True, math.nan)),
        *(("min_tokens", value) for value in (-1, 2.0, "1", True, None)),
        *(("logprobs", value) for value in (-1, 21, 2 * 10**9, True, "2")),
        *(("prompt_logprobs", value) for value in (-1, 21, 1.0)),
        *(("stop", value) for value in ("x", ("",), ("", "END"), (123,), ("x",) * 17, None, 5)),
        ("stop", ("x" * (MAX_STOP_CHARACTERS + 1),)),
        *(("stop_token_ids", value) for value in ((VOCAB,), (-1,), (VOCAB + 5,), ("1",), (True,))),
        *(("stop_token_ids", value) for value in ("12", None, (1,) * 2000)),
        *((flag, 1) for flag in ("ignore_eos", "skip_special_tokens")),
        ("include_stop_str_in_output", "yes"),
        ("logprobs_mode", "cooked"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(name, value):
    """Cases 9, 13, 19, 20, 21: the refusal names the field, and is short."""
    refused = _refused(**{name: value})
    assert refused.detail.param == name
    assert str(refused).startswith(f"{name}: ")
    assert len(str(refused)) < 300


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"max_tokens": 10**9},
        {"n": 128},
        {"logprobs": 0},
        {"logprobs": 20, "prompt_logprobs": 20},
        {"stop": ("x",) * 16},
        {"stop": ("x" * MAX_STOP_CHARACTERS,)},
        {"stop_token_ids": (0, VOCAB - 1)},
        {"min_tokens": 5, "max_tokens": 5},
        {"min_tokens": 5},
    ],
)
def test_the_edges_pass(fields):
    """Bounds are inclusive."""
    check_core(SamplingParams(**fields), VOCAB)


def test_min_tokens_above_max_tokens_is_refused():
    """Nothing could satisfy both."""
    assert _refused(min_tokens=6, max_tokens=5).detail.param == "min_tokens"


def test_bounds_of_the_engine_apply():
    """An engine may allow more alternatives or fewer choices."""
    check_core(SamplingParams(logprobs=40), VOCAB, max_logprobs=50)
    with pytest.raises(InvalidRequest, match="from 1 to 2"):
        check_core(SamplingParams(n=3), VOCAB, max_choices=2)
    with pytest.raises(InvalidRequest, match="from 0 to 8"):
        check_core(SamplingParams(logprobs=20), 8)


def test_a_megabyte_is_not_echoed():
    """A refusal of a huge value stays small (case 9)."""
    assert len(str(_refused(stop=("x" * 2**20,)))) < 300
    assert len(str(_refused(seed=10**5000))) < 300


def test_what_json_decodes_is_checked_too():
    """msgspec keeps its types; what it lets through is held to the same limits."""
    sampling = msgspec.json.decode(b'{"n": 1000}', type=SamplingParams)
    with pytest.raises(InvalidRequest, match="n: 1000"):
        check_core(sampling, VOCAB)


@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [
        ("number", 1, True),
        ("number", 0.25, True),
        ("number", 0, False),
        ("number", 10**400, False),
        ("number", math.nan, False),
        ("number", math.inf, False),
        ("number", True, False),
        ("number", "1", False),
        ("number", 3.5, False),
        ("integer", 3, True),
        ("integer", 1.0, False),
        ("integer", False, False),
        ("boolean", False, True),
        ("boolean", 0, False),
        ("object", {}, True),
        ("object", [], False),
        ("array", [], True),
        ("array", (1,), True),
        ("array", "ab", False),
        ("array", {}, False),
    ],
)
def test_declared_types(kind, value, fits):
    """Each type takes what it names and nothing that merely resembles it."""
    field = Field(
        name="x", type=kind, neutral=None, minimum=0, maximum=3, exclusive_minimum=kind == "number"
    )
    if fits:
        assert check_value(field, value) == value
    else:
        with pytest.raises(InvalidRequest, match="x: "):
            check_value(field, value)


def test_numbers_become_floats():
    """A transform never sees an int where it declared a number."""
    assert isinstance(check_value(Field(name="x", type="number", neutral=0.0), 2), float)
