"""The deadline plugin: the estimates, and when it has none."""

import pytest

from enginebay.errors import StackError
from enginebay.flow import Usage
from enginebay.plugins.admission import deadline


@pytest.fixture
def make(context_of):
    def make(**options):
        return deadline.enginebay_admission(deadline.Options(**options), context_of("door"))

    return make


def test_the_place_in_the_queue_is_the_wait(make, ask_of, load_of):
    """Nine before it and itself at two a second: five seconds, and not a bit less."""
    busy = load_of(num_waiting=9, num_running=4, requests_per_second=2.0)
    assert make().ask(ask_of(deadline=5.0), busy) is None
    refusal = make().ask(ask_of(deadline=4.9), busy)
    assert (refusal.kind, refusal.reason) == ("server", "deadline_unreachable")
    assert (refusal.limit, refusal.current) == (4.9, 5.0)
    assert 1.0 <= refusal.retry_after <= 1.5


def test_the_smaller_estimate_counts(make, ask_of, load_of):
    """Short prompts before it: at a hundred tokens a second 54 are sooner there."""
    short = load_of(
        num_waiting=9,
        num_running=4,
        waiting_tokens=50,
        requests_per_second=2.0,
        prompt_tokens_per_second=100.0,
    )
    assert make().ask(ask_of(deadline=0.54), short) is None
    assert make().ask(ask_of(deadline=0.53), short) is not None


@pytest.mark.parametrize("pace", [0.0, 2.0])
def test_what_is_unknown_counts_as_nothing(make, ask_of, load_of, pace):
    """No pace, no refusal; without a deadline none either; free seats mean no wait."""
    slow = load_of(num_waiting=100, num_running=4)
    assert make().ask(ask_of(deadline=0.1), slow) is None
    late = load_of(num_waiting=100, num_running=4, requests_per_second=pace)
    assert make().ask(ask_of(), late) is None
    free = load_of(num_running=3, requests_per_second=pace)
    assert make().ask(ask_of(deadline=0.1), free) is None


def test_time_that_has_passed_since_the_arrival_is_gone(make, ask_of, load_of):
    """Tokenizing took a second; a deadline that lies behind is never met."""
    busy = load_of(now=1.0, num_waiting=7, num_running=4, requests_per_second=2.0)
    assert make().ask(ask_of(deadline=5.0), busy) is None
    assert make().ask(ask_of(deadline=4.9), busy) is not None
    assert make().ask(ask_of(deadline=1.0), load_of(now=1.0)) is not None


@pytest.mark.parametrize(
    ("counts", "admitted_at"), [("start", 0.01), ("mean", 2.0), ("longest", 4.0)]
)
def test_the_answers_length_counts_as_chosen(make, ask_of, load_of, counts, admitted_at):
    """Answers had ten tokens of late and may have twenty; four run, two end a second."""
    member = make(counts=counts)
    for number in range(40):
        member.ask(ask_of(str(number)), load_of())
        member.settle(str(number), Usage(prompt_tokens=4, completion_tokens=10))
        member.release(str(number))
    full = load_of(num_running=3, requests_per_second=2.0)
    assert member.ask(ask_of("a", deadline=admitted_at, max_tokens=20), full) is None
    refusal = member.ask(ask_of("b", deadline=0.99 * admitted_at, max_tokens=20), full)
    assert (refusal is None) == (counts == "start")


def test_who_would_be_alone_is_let_in(make, ask_of, load_of):
    """Else a pace measured on longer requests would shut an idle engine for ever."""
    member = make()
    member.ask(ask_of("a"), load_of())
    member.settle("a", Usage(prompt_tokens=4, completion_tokens=10))
    member.release("a")
    assert member.ask(ask_of("b", deadline=1.0), load_of(requests_per_second=0.01)) is None


def test_a_deadline_that_nobody_could_meet_is_wrong_for_good(make, ask_of, load_of):
    """With ``least_seconds`` the operator says what an idle engine needs."""
    refusal = make(least_seconds=0.5).ask(ask_of(deadline=0.4), load_of())
    assert (refusal.kind, refusal.param, refusal.limit) == ("invalid", "deadline", 0.5)
    assert make(least_seconds=0.5).ask(ask_of(deadline=0.5), load_of()) is None


def test_wrong_options_stop_the_start(make):
    """With name and value."""
    with pytest.raises(StackError, match="member: least_seconds is -1"):
        make(least_seconds=-1.0)
