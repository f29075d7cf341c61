"""Dynamic batching: arrivals are collected for a window, then start together."""

import pytest

from enginebay.conformance.recorded import Recorded
from enginebay.conformance.traffic import Arrival, request_of
from enginebay.conformance.worlds import limits_of
from enginebay.errors import StackError
from enginebay.hookspecs.scheduler import SchedulerContext
from enginebay.plugins.schedulers.dynamic import Dynamic, Options, enginebay_scheduler


def recorded(**options):
    """A harness with a dynamic policy; a step takes 4 ms and more."""
    return Recorded(lambda given: Dynamic(Options(**options), given), limits_of())


def arrivals(*times, max_tokens=2):
    """Equal requests a, b, c … at these moments."""
    return [
        Arrival(time, request_of(name, num_prompt=4, max_tokens=max_tokens))
        for name, time in zip("abcdefgh", times, strict=False)
    ]


def members(plans):
    """Who computed in each step."""
    return ["".join(name for name, _ in plan) for plan in plans]


def test_those_who_come_within_the_window_start_together():
    """The first waits for the window, whoever comes later waits for the batch to end."""
    harness = recorded(window_seconds=0.05)
    harness.play(arrivals(0.0, 0.02, 0.04, 0.055))
    assert members(harness.plans) == ["abc", "abc", "d", "d"]
    assert 0.05 <= harness.began[0] < 0.053
    assert harness.waits("a") == ["batch"]


def test_a_full_batch_does_not_wait():
    """Nothing is gained by waiting for more."""
    harness = recorded(window_seconds=0.4, batch_size=2)
    harness.play(arrivals(0.0, 0.01, 0.011))
    assert members(harness.plans) == ["ab", "ab", "c", "c"]
    assert 0.01 <= harness.began[0] < 0.013
    assert harness.began[2] >= 0.411


def test_a_window_that_passed_during_a_batch_is_not_waited_for_again():
    """Those who waited for the batch start in the step after it."""
    harness = recorded(window_seconds=0.01)
    harness.play(arrivals(0.0, 0.012, max_tokens=6))
    assert members(harness.plans) == ["a"] * 6 + ["b"] * 6
    assert harness.began[6] - harness.began[5] < 0.006


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"window_seconds": -0.1}, r"window_seconds is -0\.1"),
        ({"window_seconds": 2.0}, r"window_seconds is 2\.0"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options, told):
    """The start fails and says which field."""
    with pytest.raises(StackError, match=rf"scheduler\.dynamic: {told}"):
        enginebay_scheduler(Options(**options), SchedulerContext(limits=limits_of()))
