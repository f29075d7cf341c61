"""A prefix is waited for as long as somebody gets on with it, and no longer."""

import random

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import Arrival, request_of
from enginebay.conformance.worlds import limits_of, require_all_well
from enginebay.hookspecs.allocator import AllocatorContext
from enginebay.patience import MOST_REST, STEPS, Patience
from enginebay.plugins.allocators import prefix_radix
from enginebay.plugins.schedulers.priority import Options, Priority

MOST = STEPS + 4
"""With blocks of 16 positions and 64 tokens a step."""


def test_without_progress_the_wait_ends():
    """And stays ended, also when there is progress after all."""
    patience = Patience(16, 64)
    assert [patience.lasts(1, b"a", 160) for _ in range(MOST)] == [True] * (MOST - 1) + [False]
    assert not patience.lasts(1, b"a", 16)
    patience.drop(1)
    assert patience.lasts(1, b"a", 160)


def test_progress_at_the_least_pace_is_waited_for():
    """A sixteenth of a step's tokens each step: a block of 16 in four steps."""
    patience = Patience(16, 64)
    assert all(patience.lasts(1, b"a", 1600 - step // 4 * 16) for step in range(390))


def test_one_that_gives_up_is_waited_for_by_the_others():
    """So they don't all compute the same; strangers are not concerned."""
    patience = Patience(16, 64)
    for sequence_id, identity in ((1, b"a"), (2, b"a"), (3, b"b")):
        patience.lasts(sequence_id, identity, 160)
    for _ in range(MOST - 2):
        assert patience.lasts(1, b"a", 160)
        assert patience.lasts(2, b"a", 160)
        assert patience.lasts(3, b"b", 160)
    asked = {1: b"a", 2: b"a", 3: b"b"}
    given_up = [i for i, identity in asked.items() if not patience.lasts(i, identity, 160)]
    assert given_up == [1, 3]


def test_one_that_lacks_much_rests_for_half_of_what_it_takes_at_least():
    """A prompt of ten steps is asked about again after five; what was rested counts."""
    patience = Patience(16, 64)
    assert not patience.resting(1)
    assert patience.lasts(1, b"a", 640)
    for _ in range(5):
        assert patience.resting(1)
        patience.rest(1)
    assert not patience.resting(1)
    assert [patience.lasts(1, b"a", 100) for _ in range(MOST)] == [True] * (MOST - 1) + [False]
    assert not patience.resting(1)
    assert patience.lasts(2, b"a", 10**6)
    assert patience._waits[2].rest == MOST_REST


def test_no_rest_outlasts_the_patience():
    """Without progress it ends in the same step, rested or not."""
    patience, steps = Patience(16, 64), 0
    while patience.resting(1) or patience.lasts(1, b"a", 10**6):
        if patience.resting(1):
            patience.rest(1)
        steps += 1
    assert steps <= MOST


def test_a_low_class_does_not_keep_a_high_one_waiting():
    """Class 9 computes the prefix, but class 0 fills every step: a request of class 0
    that begins alike is served in its turn, not when the load is over."""
    limits = limits_of(num_blocks=800, max_step_tokens=64, max_sequences=64, max_model_len=800)

    def build(blocks, size):
        context = AllocatorContext(blocks, size)
        return prefix_radix.enginebay_allocator(prefix_radix.Options(), context)

    harness = Harness(lambda given: Priority(Options(), given), limits, make_allocator=build)
    noise = random.Random(5)
    prefix = [1 + number % 90 for number in range(700)]
    low = request_of("low", num_prompt=0, prompt=prefix, max_tokens=3, priority=9)
    high = request_of("high", num_prompt=0, prompt=[*prefix[:400], 5], max_tokens=3)
    busy = [
        request_of(
            f"r{number}", num_prompt=0, prompt=noise.choices(range(1, 90), k=120), max_tokens=6
        )
        for number in range(60)
    ]
    harness.submit(low)
    arrivals = [Arrival(0.01 * (number + 1), request) for number, request in enumerate(busy)]
    harness.play([*arrivals, Arrival(0.03, high)])
    require_all_well(harness, "core/prefix")
    ended = {name: answer.ended_at for name, answer in harness.answers.of.items()}
    assert ended["high"] < ended["r20"] < ended["r59"] < ended["low"]
