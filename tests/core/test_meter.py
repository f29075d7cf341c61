"""The meter: rates over busy time, the loaded part of it, and what is told to come back."""

import pytest

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import Arrival, Leaving, request_of
from enginebay.conformance.worlds import limits_of
from enginebay.hookspecs.admission import AdmissionContext
from enginebay.pace import Pace, Rate
from enginebay.plugins.admission import bounded_queue
from enginebay.plugins.schedulers.chunked import Chunked, Options

STEP = 0.01
"""Seconds of every step."""


def engine(seats=4, **more):
    limits = limits_of(max_sequences=seats, num_blocks=200)
    return Harness(
        lambda given: Chunked(Options(), given),
        limits,
        cost=lambda plan: STEP,
        verify=False,
        **more,
    )


def stream(count, every, begin=0.0, **facts):
    """Requests of eight prompt tokens and five more, one at a time."""
    usual = {"num_prompt": 8, "max_tokens": 5}
    return [
        Arrival(begin + every * number, request_of(f"{begin:g}-{number}", **usual | facts))
        for number in range(count)
    ]


def test_a_rate_begins_where_the_entry_before_it_ended():
    """A whole batch in one entry counts with all the time that it took."""
    rate = Rate(window=2)
    assert rate.per_second(5.0) == 0.0
    rate.add(4.0, 8)
    assert rate.per_second(4.0) == 2.0
    rate.add(8.0, 8)
    rate.add(10.0, 2)
    assert rate.per_second(10.0) == 10 / 6
    assert rate.per_second(14.0) == 1.0


def test_a_pace_needs_some_endings_to_be_known():
    """Seven may be luck; steps without an ending make no entry, but their time counts."""
    pace = Pace()
    for _ in range(7):
        pace.step(1.0, 10, 5, 2)
        pace.step(1.0, 10, 5, 0)
    assert not pace.known
    pace.step(1.0, 10, 5, 2)
    assert pace.known
    assert pace.requests_per_second == 16 / 15
    assert pace.prompt_tokens_per_second == 10.0
    assert pace.generated_tokens_per_second == 5.0


def test_nothing_is_known_at_first():
    """And zero is said, not an error."""
    load = engine().meter.load()
    rates = (
        load.requests_per_second,
        load.prompt_tokens_per_second,
        load.generated_tokens_per_second,
    )
    assert rates == (0.0, 0.0, 0.0)


def test_an_idle_hour_changes_no_rate():
    """One request at a time takes five steps: twenty a second, now and after an hour."""
    harness = engine()
    harness.play(stream(12, every=1.0))
    before = harness.meter.load()
    assert before.requests_per_second == pytest.approx(20.0, rel=0.1)
    assert before.generated_tokens_per_second == pytest.approx(100.0, rel=0.05)
    assert before.prompt_tokens_per_second == pytest.approx(20 * 7, rel=0.05)
    harness.clock.now += 3600
    after = harness.meter.load()
    assert after.requests_per_second == before.requests_per_second
    harness.play(stream(4, every=1.0, begin=harness.clock()))
    assert harness.meter.load().requests_per_second == pytest.approx(20.0, rel=0.1)


def test_one_answer_is_no_thousand_a_second():
    """The first to end is measured by the time it took, not by the moment since."""
    harness = engine()
    harness.play(stream(1, every=1.0))
    assert harness.meter.load().requests_per_second == pytest.approx(20.0, rel=0.01)


def test_the_pace_under_load_is_measured_by_itself():
    """Alone a request takes 50 ms; of four seats it is 80 a second, and that is what a
    queue moves at. The lone ones before and after don't blur it."""
    harness = engine()
    harness.play(stream(60, every=1.0))
    assert harness.meter.load().requests_per_second == pytest.approx(20.0, rel=0.1)
    paces = []

    def look():
        if harness.intake.num_waiting > 20:
            paces.append(harness.meter.load().requests_per_second)

    harness.play(stream(100, every=0.0, begin=harness.clock()), each_turn=look)
    assert paces[-1] == pytest.approx(80.0, rel=0.1)
    harness.play(stream(60, every=1.0, begin=harness.clock()))
    load = harness.meter.load()
    assert load.requests_per_second == pytest.approx(80.0, rel=0.1)
    assert load.generated_tokens_per_second == pytest.approx(400.0, rel=0.1)


def test_who_left_without_having_run_tells_nothing_of_the_pace():
    """A thousand callers hang up at once: the engine did not become faster."""
    harness = engine()
    crowd = stream(100, every=0.0)
    leaving = [Leaving(0.3, f"0-{number}") for number in range(40, 100)]
    harness.play([*crowd, *leaving])
    assert harness.meter.load().requests_per_second == pytest.approx(80.0, rel=0.1)


def test_retry_after_is_the_time_that_the_queue_needs():
    """Sixty at once before a queue of twenty: forty are refused, and at 80 a second each
    of them is told a turn of its own, about when a place is free."""
    context = AdmissionContext(name="queue", limits=limits_of(max_sequences=4), chain="door")
    options = bounded_queue.Options(max_waiting=20, retry_after=0.0)
    harness = engine(door=[("queue", bounded_queue.enginebay_admission(options, context))])
    harness.play(stream(60, every=0.011))
    told = []
    harness.play(
        stream(60, every=0.0, begin=harness.clock()),
        refused=lambda request, error: told.append(error.refusal.retry_after),
    )
    assert len(told) == 40
    for place, wait in enumerate(told, start=1):
        assert 0.9 * place / 80 <= wait <= 1.65 * place / 80


def test_several_plans_in_flight_count_their_time_once():
    """Two at a time on the way: busy seconds don't exceed the clock's."""
    harness = engine(depth=2)
    harness.play(stream(30, every=0.0))
    load = harness.meter.load()
    assert load.generated_tokens_per_second == pytest.approx(150 / harness.clock(), rel=0.1)
