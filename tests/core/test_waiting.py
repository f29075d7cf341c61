"""Waiting: choices one by one, the oldest by arrival, sums that stay true under threads."""

from threading import Thread

import pytest

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of
from enginebay.errors import InvalidRequest
from enginebay.plugins.schedulers.chunked import Chunked, Options
from enginebay.waiting import Waiting


def enter(waiting, name, choices=1, tokens=10, arrival=0.0, admitted=True):
    with waiting.asking(name, choices, tokens, arrival) as answer:
        if admitted:
            answer.append(True)


def counts(waiting):
    return waiting.num_choices, waiting.num_tokens


def test_choices_leave_one_by_one():
    """Of three, the first starts: two wait on, with their prompt's tokens; and again."""
    waiting = Waiting()
    enter(waiting, "a", choices=3)
    enter(waiting, "b")
    waiting.started("a", 1)
    assert counts(waiting) == (3, 30)
    waiting.started("a", 1)
    assert counts(waiting) == (3, 30)
    waiting.started("a", 0)
    waiting.started("a", 2)
    assert counts(waiting) == (1, 10)
    waiting.started("unknown", 0)
    waiting.started("a", 0)
    assert counts(waiting) == (1, 10)


def test_who_leaves_takes_what_still_waited():
    """A request ends with one choice started and two that never were."""
    waiting = Waiting()
    waiting.hold("a")
    enter(waiting, "a", choices=3)
    waiting.started("a", 0)
    waiting.drop("a")
    assert (counts(waiting), waiting.num_held, waiting.oldest()) == ((0, 0), 0, None)


def test_a_request_is_not_counted_while_it_is_asked_about():
    """At the budget it was counted at the door already: admission sees the others."""
    waiting = Waiting()
    enter(waiting, "a", tokens=0, arrival=1.0)
    enter(waiting, "b", tokens=0, arrival=2.0)
    with waiting.asking("a", 1, 40, 1.0) as admitted:
        assert counts(waiting) == (1, 0)
        assert waiting.oldest() == 2.0
        admitted.append(True)
    assert counts(waiting) == (2, 40)
    assert waiting.oldest() == 1.0
    enter(waiting, "a", tokens=99, admitted=False)
    assert counts(waiting) == (2, 40)


def test_the_oldest_is_the_first_to_arrive_whoever_was_asked_last():
    """A long prompt was tokenized for longer than those that came after it."""
    waiting = Waiting()
    enter(waiting, "long", arrival=1.0)
    enter(waiting, "short", arrival=2.0)
    enter(waiting, "early", arrival=0.5)
    enter(waiting, "long", tokens=900, arrival=1.0)
    assert waiting.oldest() == 0.5
    waiting.started("early", 0)
    assert waiting.oldest() == 1.0
    waiting.started("short", 0)
    waiting.started("long", 0)
    assert waiting.oldest() is None


def test_a_request_whose_choices_wait_is_still_the_oldest():
    """Until the last has its seat."""
    waiting = Waiting()
    enter(waiting, "a", choices=2, arrival=1.0)
    enter(waiting, "b", arrival=2.0)
    waiting.started("a", 0)
    assert waiting.oldest() == 1.0
    waiting.started("a", 1)
    assert waiting.oldest() == 2.0


def test_arrivals_that_are_over_take_no_room():
    """One waits for ever while ten thousand come and go behind it."""
    waiting = Waiting()
    enter(waiting, "patient", arrival=0.0)
    for number in range(10_000):
        enter(waiting, str(number), arrival=1.0 + number)
        waiting.started(str(number), 0)
    assert waiting.oldest() == 0.0
    assert len(waiting._arrivals) < 100


def test_an_id_is_held_once():
    """A second request of it is told so, until the first has gone."""
    waiting = Waiting()
    waiting.hold("a")
    with pytest.raises(InvalidRequest, match="'a' is under way"):
        waiting.hold("a")
    waiting.drop("a")
    waiting.hold("a")


def test_sums_stay_true_under_threads():
    """Four threads take in, start and drop; nothing is left over."""
    waiting = Waiting()

    def work(part):
        for number in range(300):
            name = f"{part}-{number}"
            enter(waiting, name, choices=3, tokens=7, arrival=float(number))
            for index in range(number % 4):
                waiting.started(name, index)
            waiting.drop(name)

    threads = [Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (counts(waiting), waiting.oldest()) == ((0, 0), None)


def test_an_engine_counts_the_choices_that_have_no_seat():
    """Five choices on two seats: after the first step four wait, at last none."""
    harness = Harness(lambda limits: Chunked(Options(), limits), limits_of(max_sequences=2))
    harness.submit(request_of("a", num_prompt=9, max_tokens=4, n=5))
    seen = [harness.intake.num_waiting]

    def look():
        running = [s for s in harness.roster.sequences.values() if s.started_at is None]
        assert harness.intake.num_waiting == len(running)
        assert harness.intake.waiting_tokens == 9 * len(running)
        seen.append(harness.intake.num_waiting)

    harness.play(each_turn=look)
    assert (seen[0], seen[1], seen[-1]) == (5, 4, 0)
    assert harness.intake.oldest_wait(harness.clock()) == 0.0
