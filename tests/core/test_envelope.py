"""A request's own fields are held to their types and ranges before a policy sees them."""

import pytest
from msgspec.structs import replace

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of
from enginebay.errors import InvalidRequest
from enginebay.plugins.schedulers.priority import Options, Priority

NAN, ENDLESS = float("nan"), float("inf")
WRONG = [
    *(("priority", value) for value in ("x", None, NAN, 1.5, True, 2**63, -(2**63) - 1)),
    *(("deadline", value) for value in (NAN, 0, -1.0, "5", True, 10**400)),
    *(("arrival", value) for value in (NAN, ENDLESS, "x", 10**400)),
    *(("window", value) for value in (-1, 1.5, "a", None)),
    *(("attempt", value) for value in (-1, "x", 0.5)),
    *((name, value) for name in ("id", "tenant", "adapter") for value in ("\ud800", 5)),
]


@pytest.fixture
def harness():
    """An engine whose policy compares what requests carry."""
    return Harness(lambda given: Priority(Options(), given), limits_of())


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda value: ascii(value)[:12])
def test_wrong_fields_are_refused_by_name(harness, name, value):
    """One caller's nonsense is no other's trouble."""
    harness.submit(request_of("good", num_prompt=4, max_tokens=3))
    request = replace(request_of("bad", num_prompt=4, max_tokens=3), **{name: value})
    with pytest.raises(InvalidRequest, match=name) as refused:
        harness.submit(request)
    assert refused.value.detail.param == name
    harness.finish()
    assert harness.answers.of["good"].reasons == ("length",)
    assert harness.engine.state == "ready"


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": 2**63 - 1, "attempt": 10**6},
        {"priority": -(2**63), "window": 10**6},
        {"deadline": 1e300, "arrival": -1e9},
        {"deadline": ENDLESS, "tenant": "\U0001f600" * 1000},
    ],
)
def test_extremes_are_served(harness, fields):
    """Whatever fits its type."""
    harness.submit(replace(request_of("r", num_prompt=4, max_tokens=3), **fields))
    harness.submit(request_of("other", num_prompt=4, max_tokens=3))
    harness.finish()
    assert [answer.reasons for answer in harness.answers.of.values()] == [("length",)] * 2
