"""Classes with aging: who goes first, who gives way, and that the lowest class progresses."""

import msgspec
import pytest

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of, random_world, require_all_well
from enginebay.errors import StackError
from enginebay.hookspecs.scheduler import SchedulerContext
from enginebay.plugins.schedulers.priority import Options, Priority, enginebay_scheduler


def harness_of(*, depth=1, stall_seconds=30.0, scheduler=Priority, options=None, **limits):
    """An engine with this policy."""
    return Harness(
        lambda given: scheduler(options or Options(), given),
        limits_of(**limits),
        depth=depth,
        stall_seconds=stall_seconds,
    )


def come(harness, name, priority=0, num_prompt=6, max_tokens=4, **fields):
    """Submit; later ones arrive later."""
    harness.clock.wait_until(harness.clock.now + 1e-6)
    harness.submit(
        request_of(name, num_prompt=num_prompt, max_tokens=max_tokens, priority=priority, **fields)
    )


def preempted(harness, name):
    """Why and for whom a request gave way, each time."""
    events = harness.intake.timeline.of(name)
    return [event["reason"] for event in events if event["what"] == "preempted"]


@pytest.mark.parametrize("seed", [1, 4, 20])
def test_swapping_two_plans_ahead_loses_nothing(seed):
    """Tight pools, host memory, two plans in flight, two classes: all end rightly."""
    world = random_world(seed)
    limits = msgspec.structs.replace(world.limits, num_swap_blocks=20)
    harness = Harness(lambda given: Priority(Options(preemption="swap"), given), limits, depth=2)
    harness.play(world.happenings)
    require_all_well(harness, "priority")


def test_better_classes_go_first():
    """With one seat: by class, then by arrival."""
    harness = harness_of(max_sequences=1, options=Options(preempt=False))
    for name, priority in (("d", 2), ("c", 1), ("a", 0), ("e", 2), ("b", 0)):
        come(harness, name, priority)
    harness.finish()
    ends = {name: answer.ended_at for name, answer in harness.answers.of.items()}
    assert sorted(ends, key=ends.get) == ["a", "b", "c", "d", "e"]


def test_a_seat_is_taken_from_the_lowest_class_and_its_youngest():
    """One place is needed: one is taken, with its reason in the record."""
    harness = harness_of(max_sequences=3)
    for name, priority in (("old", 2), ("young", 2), ("middle", 1)):
        come(harness, name, priority, max_tokens=20)
    harness.turn()
    harness.turn()
    come(harness, "urgent")
    harness.turn()
    assert {s.request_id for s in harness.roster.seats.values()} == {"old", "middle", "urgent"}
    harness.finish()
    require_all_well(harness, "priority")
    assert [preempted(harness, name) for name in ("old", "young", "middle", "urgent")] == [
        [],
        ["priority"],
        [],
        [],
    ]


def test_blocks_are_taken_only_if_that_is_enough():
    """What would not fit although all lower classes gave way takes nothing."""
    harness = harness_of(num_blocks=12, block_size=4)
    come(harness, "same", 0, num_prompt=20, max_tokens=9)
    come(harness, "lower", 1, num_prompt=12, max_tokens=6)
    harness.turn()
    come(harness, "large", 0, num_prompt=30, max_tokens=2)
    harness.turn()
    assert preempted(harness, "lower") == []
    come(harness, "late", 0, num_prompt=30, max_tokens=2)
    harness.finish()
    require_all_well(harness, "priority")

    harness = harness_of(num_blocks=12, block_size=4)
    come(harness, "lower", 1, num_prompt=28, max_tokens=6)
    harness.turn()
    come(harness, "fits", 0, num_prompt=30, max_tokens=2)
    harness.finish()
    assert preempted(harness, "lower") == ["priority"]
    assert harness.answers.of["fits"].ended_at < harness.answers.of["lower"].ended_at


def test_the_stalled_give_way_first():
    """A lower class that can't run anyway loses its seat before one that can."""
    harness = harness_of(max_sequences=2)
    come(harness, "stalled", 1, max_tokens=20, window=2)
    come(harness, "runs", 1, max_tokens=20)
    for _ in range(4):
        harness.turn()
    come(harness, "urgent", max_tokens=2)
    harness.turn()
    assert preempted(harness, "stalled") == ["priority"]
    assert preempted(harness, "runs") == []


def test_nobody_gives_way_where_that_is_switched_off():
    """``preempt = false``: a better class waits for a seat."""
    harness = harness_of(max_sequences=1, options=Options(preempt=False))
    come(harness, "low", 5, max_tokens=9)
    harness.turn()
    come(harness, "high")
    harness.finish()
    assert preempted(harness, "low") == []
    assert harness.answers.of["low"].ended_at < harness.answers.of["high"].ended_at


def test_who_has_aged_keeps_its_place():
    """A lower class that came an aging step earlier is neither overtaken nor preempted."""
    harness = harness_of(max_sequences=1, options=Options(aging_seconds=0.5))
    come(harness, "low", 1, max_tokens=200, num_prompt=4)
    harness.turn()
    harness.clock.wait_until(0.6)
    come(harness, "high")
    harness.finish()
    assert preempted(harness, "low") == []


class NeverAges(Priority):
    """The fault: a class counts for ever."""

    def rank(self, sequence):
        """By class."""
        return sequence.priority, sequence.arrival, sequence.id


def first_token_under_overload(scheduler, seconds):
    """When a request of class 9 got its first token; class 0 always has eight waiting."""
    options = Options(aging_seconds=0.1)
    harness = harness_of(max_sequences=4, scheduler=scheduler, options=options)
    come(harness, "low", 9, max_tokens=6)
    number = 0
    while harness.clock.now < seconds:
        while harness.intake.num_waiting < 9:
            number += 1
            come(harness, f"high{number}", max_tokens=6)
        harness.turn()
    return harness.answers.of["low"].first_token_at


def test_the_lowest_class_starts_within_its_bound():
    """Nine classes down and 0.1 s each: after 0.9 s only those before it are ahead, here
    three rounds of seats; without aging it never starts."""
    a_round = 7 * 0.006
    started = first_token_under_overload(Priority, 2.0)
    assert 0.8 < started < 0.9 + 3 * a_round
    assert first_token_under_overload(NeverAges, 2.0) is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (Options(aging_seconds=0.0), "aging_seconds is 0.0"),
        (Options(aging_seconds=float("inf")), "aging_seconds is inf"),
        (Options(max_chunk=0), "max_chunk is 0"),
    ],
)
def test_wrong_options_are_named(options, told):
    """The start stops and says which value is wrong."""
    with pytest.raises(StackError, match=told):
        enginebay_scheduler(options, SchedulerContext(limits=limits_of()))
