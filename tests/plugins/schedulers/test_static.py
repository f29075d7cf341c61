"""Static batching: a batch is locked until its slowest member ends."""

import pytest

from enginebay.conformance.recorded import Recorded
from enginebay.conformance.worlds import limits_of, require_all_well
from enginebay.errors import StackError
from enginebay.hookspecs.scheduler import SchedulerContext
from enginebay.plugins.schedulers.static import Options, Static, enginebay_scheduler


def recorded(batch_size=8, **limits):
    """A harness with a static policy."""
    return Recorded(lambda given: Static(batch_size, "cheapest", given), limits_of(**limits))


def members(plans):
    """Who computed in each step."""
    return ["".join(name for name, _ in plan) for plan in plans]


def test_nobody_joins_until_the_slowest_member_has_ended():
    """A seat that a short answer leaves stays empty, and the timeline says why."""
    harness = recorded()
    harness.come("a", 4, 5)
    harness.come("b", 4, 2)
    harness.turn()
    harness.come("c", 4, 3)
    harness.come("d", 4, 1)
    harness.finish()
    assert members(harness.plans) == ["ab", "ab", "a", "a", "a", "cd", "c", "c"]
    assert harness.waits("c") == ["batch"]


def test_a_batch_has_no_more_members_than_its_size():
    """Neither its option's nor the engine's seats."""
    for size, seats in ((2, 8), (8, 2)):
        harness = recorded(size, max_sequences=seats)
        for number, name in enumerate("abcde"):
            harness.come(name, 4, 3 - number % 2)
        harness.finish()
        assert members(harness.plans) == ["ab", "ab", "a", "cd", "cd", "c", "e", "e", "e"]


def test_who_gave_way_comes_back_into_its_batch():
    """A preempted member is not behind those who wait for the next batch."""
    harness = recorded(num_blocks=12, max_model_len=40)
    for name in "ab":
        harness.come(name, 11, 16)
    harness.turn()
    harness.come("c", 4, 1)
    harness.finish()
    require_all_well(harness, "static")
    usage = {name: answer.ended.usage for name, answer in harness.answers.of.items()}
    assert usage["b"].num_preemptions == 1
    assert members(harness.plans)[-2:] == ["b", "c"]


def test_a_member_whose_reader_is_behind_keeps_nobody_waiting():
    """It can't go on, so the next batch is formed; it goes on when its reader has."""
    harness = recorded()
    harness.come("slow", 4, 6, window=2)
    for _ in range(3):
        harness.turn()
    harness.come("next", 4, 2)
    while not harness.answers.of["next"].ended:
        assert harness.turn()
    harness.write("slow", 6)
    harness.finish()
    require_all_well(harness, "static")


def test_two_plans_in_flight_do_not_open_the_batch():
    """Members whose step is under way are still members."""
    harness = Recorded(lambda given: Static(8, "cheapest", given), limits_of(), depth=2)
    harness.come("a", 4, 9)
    harness.turn()
    harness.come("b", 4, 2)
    harness.finish()
    assert members(harness.plans) == ["a"] * 9 + ["b"] * 2


def test_an_empty_batch_is_refused_by_name():
    """The start fails and says which field."""
    with pytest.raises(StackError, match=r"scheduler\.static: batch_size is 0"):
        enginebay_scheduler(Options(batch_size=0), SchedulerContext(limits=limits_of()))
