"""The retry-budget plugin: a share of first tries, a floor, and patience taught."""

import pytest

from enginebay.errors import StackError
from enginebay.plugins.admission import retry_budget


@pytest.fixture
def make(context_of):
    def make(**options):
        return retry_budget.enginebay_admission(retry_budget.Options(**options), context_of("door"))

    return make


def test_retries_are_a_share_of_first_tries(make, ask_of, load_of):
    """A hundred first tries at a tenth: ten retries, the eleventh is refused."""
    budget, busy = make(min_retries_per_second=0.0), load_of(num_waiting=1)
    for number in range(100):
        assert budget.ask(ask_of(str(number)), busy) is None
    answers = [budget.ask(ask_of(f"again{number}", attempt=1), busy) for number in range(11)]
    assert answers[:10] == [None] * 10
    assert (answers[10].kind, answers[10].reason) == ("server", "retry_budget")
    assert (answers[10].limit, answers[10].current) == (10.0, 10.0)
    assert budget.ask(ask_of("first"), busy) is None


def test_without_load_every_retry_is_welcome(make, ask_of, load_of):
    """Nobody waits: nothing can collapse."""
    budget = make(min_retries_per_second=0.0)
    answers = [budget.ask(ask_of(str(i), attempt=3), load_of(num_running=4)) for i in range(50)]
    assert answers == [None] * 50


def test_a_floor_keeps_a_quiet_server_open(make, ask_of, load_of):
    """Half a retry a second over ten seconds are five, without any first try."""
    budget = make(min_retries_per_second=0.5, window=10.0)
    busy = load_of(num_waiting=1)
    answers = [budget.ask(ask_of(str(number), attempt=1), busy) for number in range(8)]
    assert answers.count(None) == 5


def test_the_past_fades(make, ask_of, load_of):
    """First tries and retries alike: a window later 37 % of them count."""
    budget = make(share=1.0, min_retries_per_second=0.0, window=10.0)
    for number in range(10):
        budget.ask(ask_of(str(number)), load_of(num_waiting=1))
    later = load_of(now=10.0, num_waiting=1)
    answers = [budget.ask(ask_of(f"again{number}", attempt=1), later) for number in range(10)]
    assert answers.count(None) == 3


def test_the_more_attempts_the_longer_the_wait(make, ask_of, load_of):
    """Each doubles it, up to the bound."""
    busy = load_of(num_waiting=1)
    waits = [
        make(share=0.0, min_retries_per_second=0.0).ask(ask_of(attempt=attempt), busy).retry_after
        for attempt in (1, 2, 3, 10)
    ]
    assert 4.0 <= waits[0] <= 6.0
    assert 8.0 <= waits[1] <= 12.0
    assert 16.0 <= waits[2] <= 24.0
    assert 120.0 <= waits[3] <= 180.0


def test_wrong_options_stop_the_start(make):
    """With name and value."""
    with pytest.raises(StackError, match=r"member: share is -0\.1"):
        make(share=-0.1)
    with pytest.raises(StackError, match=r"member: window is 0\.0"):
        make(window=0.0)
