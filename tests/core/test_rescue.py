"""No policy can overcommit, lose a request, or bring the engine to a standstill."""

import pytest
from structlog.testing import capture_logs

from enginebay.conformance.harness import Harness
from enginebay.conformance.mutants.hostile import FATAL, SURVIVED, PlansNothing
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of, random_world, require_all_well
from enginebay.plugins.schedulers.chunked import Chunked, Options
from enginebay.rescue import PATIENCE_SECONDS


@pytest.mark.parametrize("seed", [0, 1, 4, 20])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("hostile", SURVIVED, ids=lambda kind: kind.__name__)
def test_hostile_policies_are_survived(hostile, depth, seed):
    """Every plan keeps its budgets, every request ends rightly, everything comes back."""
    world = random_world(seed, num_requests=12)
    harness = Harness(hostile, world.limits, depth=depth)
    harness.play(world.happenings, max_turns=30_000)
    require_all_well(harness, "core/rescue")


@pytest.mark.parametrize("hostile", FATAL, ids=lambda kind: kind.__name__)
def test_fatal_policies_end_every_request_with_an_error(hostile):
    """Their state can't be trusted: the engine stops, and nobody is left hanging."""
    harness = Harness(hostile, limits_of())
    for number in range(5):
        harness.submit(request_of(f"r{number}", num_prompt=5, max_tokens=3 + number))
    harness.finish(max_turns=1000)
    assert harness.engine.state == "failed"
    ended = [answer.ended for answer in harness.answers.of.values()]
    assert all(ended)
    failed = [end.error for end in ended if end.error]
    assert failed
    assert {(error.kind, "engine failed" in error.message) for error in failed} == {
        ("engine", True)
    }


def test_a_silent_policy_is_waited_for_once():
    """After the patience the oldest gets on step by step, not once a second."""
    harness = Harness(PlansNothing, limits_of())
    for number in range(4):
        harness.submit(request_of(f"r{number}", num_prompt=5, max_tokens=20))
    harness.finish()
    assert PATIENCE_SECONDS < harness.clock.now < PATIENCE_SECONDS + 1
    ends = [harness.answers.of[f"r{number}"].ended_at for number in range(4)]
    assert ends == sorted(ends)


def test_the_policy_still_plans_beside_a_favoured_sequence():
    """Rescue costs the others no more than it must."""

    class ForgetsTheFirst(Chunked):
        def add(self, sequence):
            if sequence.id > 1:
                super().add(sequence)

    harness = Harness(lambda limits: ForgetsTheFirst(Options(), limits), limits_of())
    harness.submit(request_of("first", num_prompt=5, max_tokens=60))
    while harness.answers.of["first"].num_tokens < 3:
        if not harness.turn():
            harness.clock.wait_until(harness.clock.now + 0.01)
    harness.submit(request_of("second", num_prompt=5, max_tokens=4))
    harness.finish()
    second = harness.answers.of["second"]
    assert second.ended_at < harness.answers.of["first"].ended_at


def test_a_sequence_that_never_fits_ends_with_capacity():
    """It holds the pool alone and still needs more; what was generated stays."""
    harness = Harness(
        lambda limits: Chunked(Options(), limits), limits_of(num_blocks=5, max_model_len=100)
    )
    harness.submit(request_of("big", num_prompt=10, max_tokens=50))
    harness.submit(request_of("small", num_prompt=6, max_tokens=5))
    harness.finish()
    assert harness.answers.of["big"].reasons == ("capacity",)
    assert harness.answers.of["big"].num_tokens == 11
    assert harness.answers.of["small"].reasons == ("length",)


def test_a_policy_may_make_room_in_one_step_and_use_it_in_the_next():
    """Nobody ends for want of blocks that were being freed."""

    class MakesRoomFirst(PlansNothing):
        def plan(self, build):
            for sequence in list(self.waiting.values()):
                if build.start(sequence):
                    self.remove(sequence.id)
                elif build.running:
                    build.preempt(build.running[-1])
                    return
            for sequence in build.running:
                build.run(sequence)

    harness = Harness(MakesRoomFirst, limits_of(num_blocks=6, max_model_len=24))
    harness.submit(request_of("one", num_prompt=14, max_tokens=4))
    harness.turn()
    harness.submit(request_of("two", num_prompt=13, max_tokens=4))
    harness.finish(max_turns=3000)
    require_all_well(harness, "core/rescue")


def test_a_policy_may_start_in_the_step_in_which_it_preempted():
    """A sequence that outgrew the pool is not ended while a plan names it."""

    class StartsAnew(PlansNothing):
        def plan(self, build):
            for sequence in build.running:
                build.preempt(sequence)
                self.waiting[sequence.id] = sequence
            for sequence in list(self.waiting.values()):
                if build.start(sequence) or build.start(sequence, 8):
                    self.remove(sequence.id)

    harness = Harness(StartsAnew, limits_of(num_blocks=4, max_model_len=60))
    harness.submit(request_of("one", num_prompt=14, max_tokens=40))
    harness.finish(max_turns=3000)
    assert harness.answers.of["one"].reasons == ("capacity",)
    require_all_well(harness, "core/rescue")


def test_who_is_cancelled_in_its_prompt_is_no_sign_of_a_standstill():
    """Many positions computed and no token drawn, but everybody left by themselves."""
    harness = Harness(
        lambda limits: Chunked(Options(), limits), limits_of(num_blocks=16, max_step_tokens=8)
    )
    with capture_logs() as logs:
        for number in range(30):
            harness.submit(request_of(f"r{number}", num_prompt=40, max_tokens=4))
            harness.turn()
            harness.turn()
            harness.cancel(f"r{number}")
        harness.finish()
    assert logs == []


def test_a_stalled_holder_gives_way_before_an_active_one():
    """The younger of two lacks a block; the older one's reader is behind."""
    harness = Harness(
        lambda limits: Chunked(Options(), limits), limits_of(num_blocks=8, max_model_len=32)
    )
    harness.submit(request_of("slow", num_prompt=10, max_tokens=10, window=2))
    harness.turn()
    harness.submit(request_of("quick", num_prompt=10, max_tokens=20))
    while not harness.answers.of["quick"].ended:
        harness.turn()
    harness.write("slow", 10)
    harness.finish()
    usage = {name: answer.ended.usage for name, answer in harness.answers.of.items()}
    assert (usage["slow"].num_preemptions, usage["quick"].num_preemptions) == (1, 0)
    require_all_well(harness, "core/rescue")


def test_a_policy_is_told_what_the_core_started():
    """A sequence that runs does not wait in the policy's queue as well."""
    harness = Harness(PlansNothing, limits_of())
    for number in range(3):
        harness.submit(request_of(f"r{number}", num_prompt=5, max_tokens=20))
    while not harness.roster.seats:
        harness.turn()
        harness.clock.wait_until(harness.clock.now + 0.01)
    assert harness.scheduler.num_waiting() == 2


@pytest.mark.parametrize("hostile", SURVIVED, ids=lambda kind: kind.__name__)
def test_room_is_made_although_many_plans_are_in_flight(hostile):
    """Who is in flight can't be preempted: nothing more is granted until it comes back."""
    harness = Harness(hostile, limits_of(num_blocks=10, max_model_len=44, max_sequences=6), depth=3)
    for number in range(8):
        harness.submit(request_of(f"r{number}", num_prompt=30 - 2 * (number % 3), max_tokens=3))
    harness.finish(max_turns=8000)
    require_all_well(harness, "core/rescue")
