"""The token-budget plugin: prompts and answers apart, one request and all of them."""

import pytest

from enginebay.errors import StackError
from enginebay.plugins.admission import token_budget


@pytest.fixture
def make(context_of):
    def make(chain="budget", **options):
        built = token_budget.Options(**options)
        return token_budget.enginebay_admission(built, context_of(chain))

    return make


def test_prompt_tokens_of_all_are_bounded(make, ask_of, load_of):
    """Exactly the bound is admitted, one more is not; what ends makes room."""
    budget = make(max_prompt_tokens=100)
    assert budget.ask(ask_of("a", num_prompt_tokens=60), load_of()) is None
    refusal = budget.ask(ask_of("b", num_prompt_tokens=41), load_of())
    assert (refusal.kind, refusal.reason) == ("server", "prompt_tokens")
    assert (refusal.limit, refusal.current) == (100, 60)
    assert budget.ask(ask_of("c", num_prompt_tokens=40), load_of()) is None
    budget.release("a")
    assert budget.ask(ask_of("b", num_prompt_tokens=41), load_of()) is None


def test_output_tokens_count_for_each_choice(make, ask_of, load_of):
    """Three choices of 20 are 60; prompts don't count here, and once in theirs."""
    budget = make(max_output_tokens=100, max_prompt_tokens=8)
    assert budget.ask(ask_of("a", n=3, max_tokens=20), load_of()) is None
    refusal = budget.ask(ask_of("b", n=3, max_tokens=20), load_of())
    assert (refusal.reason, refusal.current) == ("output_tokens", 60)
    assert budget.ask(ask_of("c", n=2, max_tokens=20), load_of()) is None


def test_a_request_has_maxima_of_its_own(make, ask_of, load_of):
    """Over them it is wrong for good; the field and the fix are named."""
    budget = make(max_request_prompt_tokens=10, max_request_output_tokens=30)
    assert budget.ask(ask_of("a", num_prompt_tokens=10, n=2, max_tokens=15), load_of()) is None
    long = budget.ask(ask_of("b", num_prompt_tokens=11), load_of())
    assert (long.kind, long.param, long.limit, long.current) == ("invalid", "prompt", 10, 11)
    many = budget.ask(ask_of("c", n=2, max_tokens=16), load_of())
    assert (many.kind, many.param, many.limit, many.current) == ("invalid", "max_tokens", 30, 32)
    assert "lower max_tokens or n" in many.message


def test_more_than_all_together_may_have_is_never_asked_to_come_back(make, ask_of, load_of):
    """Alone it would still be too much: a 503 would send the caller round for ever."""
    assert make(max_prompt_tokens=3).ask(ask_of(), load_of()).kind == "invalid"


def test_no_max_tokens_is_up_to_the_context(make, ask_of, load_of):
    """64 positions and a prompt of 4 leave 60."""
    refusal = make(max_request_output_tokens=59).ask(ask_of(max_tokens=None), load_of())
    assert refusal.current == 60


def test_retry_after_waits_for_as_many_requests_as_hold_the_tokens(make, ask_of, load_of):
    """40 tokens too many at 20 a request are two requests: four seconds at half a second."""
    budget = make(max_output_tokens=100)
    for name in "abcde":
        assert budget.ask(ask_of(name, max_tokens=20), load_of()) is None
    refusal = budget.ask(ask_of("f", max_tokens=40), load_of(requests_per_second=0.5))
    assert 4.0 <= refusal.retry_after <= 6.0


def test_wrong_options_and_the_door_stop_the_start(make):
    """With the member's name and the fix."""
    with pytest.raises(StackError, match="member: max_prompt_tokens is -1"):
        make(max_prompt_tokens=-1)
    with pytest.raises(StackError, match=r"member: .* list it under budget"):
        make(chain="door")
