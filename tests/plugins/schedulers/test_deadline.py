"""Earliest deadline first: what is met under overload, and who waits for whom."""

import random
from types import SimpleNamespace

import msgspec
import pytest

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import Arrival, request_of
from enginebay.conformance.worlds import limits_of, random_world, require_all_well
from enginebay.errors import StackError
from enginebay.hookspecs.scheduler import SchedulerContext
from enginebay.plugins.schedulers.deadline import (
    MAX_MOVES,
    Deadline,
    Options,
    enginebay_scheduler,
)
from enginebay.plugins.schedulers.fcfs import Fcfs
from enginebay.plugins.schedulers.fcfs import Options as FcfsOptions


def harness_of(options=None, **limits):
    """An engine with this policy; a step takes a hundredth of a second."""
    return Harness(
        lambda given: Deadline(options or Options(), given),
        limits_of(**limits),
        cost=lambda plan: 0.01,
    )


def come(harness, name, deadline=None, num_prompt=6, max_tokens=4):
    """Submit; later ones arrive later."""
    harness.clock.wait_until(harness.clock.now + 1e-6)
    harness.submit(
        request_of(name, num_prompt=num_prompt, max_tokens=max_tokens, deadline=deadline)
    )


def order(harness):
    """Names in the order of their ends."""
    ends = {name: answer.ended_at for name, answer in harness.answers.of.items()}
    return sorted(ends, key=ends.get)


def measured(harness):
    """Let the policy see its pace."""
    come(harness, "first", max_tokens=5)
    harness.finish()
    assert harness.scheduler._pace == pytest.approx(0.01)
    del harness.answers.of["first"]


@pytest.mark.parametrize("seed", [1, 4, 20])
def test_swapping_two_plans_ahead_loses_nothing(seed):
    """Tight pools, host memory, two plans in flight: all end rightly."""
    world = random_world(seed)
    limits = msgspec.structs.replace(world.limits, num_swap_blocks=20)
    harness = Harness(lambda given: Deadline(Options(preemption="swap"), given), limits, depth=2)
    harness.play(world.happenings)
    require_all_well(harness, "deadline")


def test_the_earliest_deadline_goes_first():
    """With one seat: by deadline; those without one count as due some time after arrival."""
    harness = harness_of(Options(aging_seconds=5.0), max_sequences=1)
    for name, deadline in (("d", 6.0), ("c", None), ("b", 4.0), ("e", 7.0), ("a", 3.0)):
        come(harness, name, deadline)
    harness.finish()
    assert order(harness) == ["a", "b", "c", "d", "e"]


def test_who_can_not_be_in_time_goes_behind_those_that_can():
    """Forty steps don't fit into a fifth of a second: nobody is made to wait for that."""
    harness = harness_of(max_sequences=1)
    measured(harness)
    come(harness, "hopeless", 0.2, max_tokens=40)
    come(harness, "possible", 0.3, max_tokens=20)
    harness.finish()
    assert harness.answers.of["possible"].reasons == ("length",)
    assert harness.answers.of["hopeless"].reasons == ("deadline",)
    assert harness.answers.of["hopeless"].num_tokens == 0


def test_with_the_first_token_as_goal_a_long_answer_is_no_hindrance():
    """``goal = "start"``: what counts is when it begins."""
    harness = harness_of(Options(goal="start"), max_sequences=1)
    measured(harness)
    come(harness, "long", 0.2, max_tokens=40)
    come(harness, "short", 0.9, max_tokens=20)
    harness.finish()
    assert harness.answers.of["long"].num_tokens > 10
    assert harness.answers.of["short"].reasons == ("length",)


def test_an_urgent_request_takes_the_place_of_one_with_time_to_spare():
    """Not at once: only when half its own time to spare is gone."""
    for preempt, met in ((True, ("length",)), (False, ("deadline",))):
        harness = harness_of(Options(preempt=preempt), max_sequences=1)
        measured(harness)
        come(harness, "patient", None, max_tokens=150)
        harness.turn()
        come(harness, "urgent", 0.5, max_tokens=20)
        harness.turn()
        assert harness.scheduler.num_waiting() == 1
        harness.finish()
        assert harness.answers.of["urgent"].reasons == met
        assert harness.answers.of["patient"].reasons == ("length",)
        events = harness.intake.timeline.of("patient")
        reasons = [event["reason"] for event in events if event["what"] == "preempted"]
        assert reasons == ["deadline"] * preempt


def test_a_place_is_not_taken_from_one_that_would_be_late_by_it():
    """Who is due a little later keeps its seat: else both would miss."""
    harness = harness_of(max_sequences=1)
    measured(harness)
    come(harness, "runs", 0.35, max_tokens=30)
    harness.turn()
    come(harness, "urgent", 0.3, max_tokens=20)
    harness.finish()
    assert harness.answers.of["runs"].reasons == ("length",)


def test_those_without_a_deadline_are_not_starved():
    """Under lasting overload by short deadlines they start once they count as due."""
    harness = harness_of(Options(aging_seconds=1.0), max_sequences=2)
    come(harness, "none")
    number = 0
    while harness.clock.now < 2.5:
        while harness.intake.num_waiting < 12:
            number += 1
            come(harness, f"r{number}", 0.9)
        harness.turn()
    assert harness.answers.of["none"].first_token_at < 1.5


def test_a_queue_of_late_ones_is_sorted_out_bit_by_bit():
    """However many became late at once, a step's work is bounded."""
    policy = Deadline(Options(), limits_of())
    policy._pace = 1.0
    for number in range(1000):
        late = SimpleNamespace(id=number, arrival=0.0, deadline=5.0, num_saved=0)
        late.num_tokens, late.num_computed, late.num_generated, late.max_tokens = 6, 0, 0, 9
        policy.add(late)
    policy._sort_out()
    assert (len(policy._late), policy.num_waiting()) == (MAX_MOVES, 1000)
    policy.check_integrity()


class PlainEdf(Deadline):
    """The fault: nobody is ever given up."""

    def late(self, sequence):
        """Never."""
        return False


def num_met(scheduler, options, per_second=32, seconds=6):
    """Requests that end in time, at about twice what the engine can do."""
    noise = random.Random(1)
    happenings, time = [], 0.0
    while time < seconds:
        time += noise.expovariate(per_second)
        request = request_of(
            f"r{len(happenings)}",
            num_prompt=noise.randint(20, 150),
            max_tokens=noise.randint(10, 60),
            deadline=noise.uniform(0.8, 4.0),
        )
        happenings.append(Arrival(time, request))
    limits = limits_of(max_step_tokens=128, num_blocks=400, block_size=16, max_model_len=400)
    harness = Harness(
        lambda given: scheduler(options, given),
        limits,
        cost=lambda plan: 0.012 + 0.0002 * plan.num_tokens,
        verify=False,
    )
    harness.play(happenings)
    reasons = [answer.reasons for answer in harness.answers.of.values()]
    return reasons.count(("length",)), len(reasons)


def test_more_deadlines_are_met_than_by_arrival_and_than_without_giving_up():
    """On an overloaded trace FCFS and plain EDF spend their time on what is late anyway."""
    met, offered = num_met(Deadline, Options())
    by_arrival, _ = num_met(Fcfs, FcfsOptions())
    plain, _ = num_met(PlainEdf, Options())
    print(f"of {offered}: deadline {met}, fcfs {by_arrival}, plain edf {plain}")
    assert met > 1.3 * by_arrival
    assert met > 1.3 * plain


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (Options(aging_seconds=-1.0), "aging_seconds is -1.0"),
        (Options(max_chunk=0), "max_chunk is 0"),
    ],
)
def test_wrong_options_are_named(options, told):
    """The start stops and says which value is wrong."""
    with pytest.raises(StackError, match=told):
        enginebay_scheduler(options, SchedulerContext(limits=limits_of()))
