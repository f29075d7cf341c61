"""The bounded-queue plugin: choices and prompt tokens that wait have an end."""

import pytest
from msgspec.structs import replace

from enginebay.errors import StackError
from enginebay.hookspecs.admission import AdmissionContext, Ask, Load
from enginebay.hookspecs.model import Limits
from enginebay.plugins.admission import bounded_queue

SEATS = 4


def make(**options):
    limits = Limits(
        max_model_len=64, max_step_tokens=16, max_sequences=SEATS, block_size=16, num_blocks=8
    )
    context = AdmissionContext(name="queue", limits=limits)
    return bounded_queue.enginebay_admission(bounded_queue.Options(**options), context)


def ask(request_id="r", n=1, tokens=None):
    return Ask(request_id=request_id, tenant="t", n=n, arrival=0.0, num_prompt_tokens=tokens)


def load(waiting=0, tokens=0, pace=0.0):
    return Load(
        now=0.0,
        num_waiting=waiting,
        num_running=0,
        waiting_tokens=tokens,
        num_free_blocks=8,
        num_blocks=8,
        requests_per_second=pace,
    )


def test_case_31_the_queue_is_full_at_its_bound_and_not_before():
    """Case 31: the ninth to wait is refused with a 503 that says when to come back."""
    queue = make(max_waiting=8)
    assert queue.ask(ask("a"), load(waiting=7)) is None
    refusal = queue.ask(ask("b"), load(waiting=8))
    assert refusal is not None
    assert (refusal.kind, refusal.reason, refusal.plugin) == ("server", "queue_full", "queue")
    assert (refusal.limit, refusal.current) == (8, 8)
    assert 1.0 <= refusal.retry_after <= 1.5


def test_case_31_a_stale_load_does_not_open_the_gate():
    """Case 31: 200 requests that all see an empty queue still end at seats plus bound."""
    queue = make(max_waiting=8)
    answers = [queue.ask(ask(str(number)), load(waiting=0)) for number in range(200)]
    assert answers.count(None) == SEATS + 8
    queue.release("0")
    queue.release("0")
    assert queue.ask(ask("next"), load(waiting=0)) is None
    assert queue.ask(ask("after"), load(waiting=0)) is not None


def test_case_31_a_request_counts_with_all_its_choices():
    """Case 31: four choices take four places, both when they join and while they wait."""
    queue = make(max_waiting=8)
    assert queue.ask(ask("a", n=4), load(waiting=0)) is None
    assert queue.ask(ask("b", n=4), load(waiting=4)) is None
    refusal = queue.ask(ask("c", n=1), load(waiting=8))
    assert refusal is not None
    assert refusal.current == 8
    assert queue.ask(ask("d", n=4), load(waiting=5)) is not None
    assert queue.ask(ask("e", n=4), load(waiting=0)) is None
    assert queue.ask(ask("f", n=1), load(waiting=0)) is not None


def test_an_empty_queue_takes_any_request():
    """What is larger than the bound by itself is not told to come back for ever."""
    queue = make(max_waiting=2, max_waiting_tokens=10)
    assert queue.ask(ask("a", n=5, tokens=50), load()) is None


@pytest.mark.parametrize(("tokens", "joining", "admitted"), [(60, 40, True), (60, 41, False)])
def test_waiting_prompt_tokens_are_bounded(tokens, joining, admitted):
    """After tokenizing the request's own tokens count too."""
    queue = make(max_waiting_tokens=100)
    refusal = queue.ask(ask(tokens=joining), load(waiting=2, tokens=tokens))
    assert (refusal is None) == admitted
    if refusal is not None:
        assert (refusal.reason, refusal.limit, refusal.current) == ("queue_tokens", 100, 60)


def test_a_prompt_counts_once_for_each_choice():
    """Two choices of 20 tokens beside 60 that wait are 100; of 21 they are too many."""
    queue = make(max_waiting_tokens=100)
    assert queue.ask(ask("a", n=2, tokens=21), load(waiting=2, tokens=60)) is not None
    assert queue.ask(ask("b", n=2, tokens=20), load(waiting=2, tokens=60)) is None


def test_at_the_door_only_what_waits_counts():
    """The length is not known yet; a queue at its bound is closed."""
    queue = make(max_waiting_tokens=100)
    assert queue.ask(ask("a"), load(waiting=2, tokens=99)) is None
    assert queue.ask(ask("b"), load(waiting=2, tokens=100)) is not None


@pytest.mark.parametrize(("pace", "expected"), [(0.0, 1.0), (0.5, 2.0), (0.001, 60.0), (99.0, 1.0)])
def test_retry_after_follows_the_engines_pace(pace, expected):
    """One place must come free: at half a request a second in two seconds; bounded."""
    refusal = make(max_waiting=8).ask(ask(), load(waiting=8, pace=pace))
    assert refusal is not None
    assert expected <= refusal.retry_after <= 1.5 * expected


def test_each_refused_caller_gets_a_turn_of_its_own():
    """A hundred refused in a moment come back one after another, at the engine's pace."""
    queue = make(max_waiting=8, max_retry_after=1000.0)
    full = load(waiting=8, pace=0.5)
    waits = [queue.ask(ask(str(number)), full).retry_after for number in range(100)]
    for number, wait in enumerate(waits, start=1):
        assert 2 * number <= wait <= 3 * number
    later = replace(full, now=200.0)
    assert queue.ask(ask("later"), later).retry_after <= 3.0


def test_the_pace_is_of_requests_the_queue_of_choices():
    """Requests of four choices leave four places each: four more are two seconds away."""
    queue = make(max_waiting=8)
    for name in "abc":
        assert queue.ask(ask(name, n=4), load()) is None
    refusal = queue.ask(ask("d", n=4), load(waiting=8, pace=0.5))
    assert 2.0 <= refusal.retry_after <= 3.0


def test_zero_is_no_bound():
    """Both bounds can be switched off."""
    queue = make(max_waiting=0, max_waiting_tokens=0)
    assert queue.ask(ask(n=99, tokens=10**6), load(waiting=10**6, tokens=10**9)) is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_waiting": -1}, "max_waiting is -1"),
        ({"retry_after": 9.0, "max_retry_after": 3.0}, "max_retry_after is 3.0"),
    ],
)
def test_an_impossible_option_stops_the_start(options, told):
    """The message names the member, the option and its value."""
    with pytest.raises(StackError, match=f"queue: {told}"):
        make(**options)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_longest_estimate_is_a_number_of_seconds(context_of, value):
    """Else every refusal would fail on rounding it."""
    options = bounded_queue.Options(max_retry_after=value)
    with pytest.raises(StackError, match="must be finite and not below retry_after"):
        bounded_queue.enginebay_admission(options, context_of())
