"""The context-length plugin: exact at its edge, and clear about the numbers."""

import pytest

from enginebay.errors import StackError
from enginebay.hookspecs.admission import AdmissionContext, Ask, Load
from enginebay.hookspecs.model import Limits
from enginebay.plugins.admission import context_length

LOAD = Load(
    now=0.0,
    num_waiting=0,
    num_running=0,
    waiting_tokens=0,
    num_free_blocks=8,
    num_blocks=8,
    requests_per_second=0.0,
)
CONTEXT = AdmissionContext(
    name="context",
    limits=Limits(
        max_model_len=64, max_step_tokens=16, max_sequences=4, block_size=16, num_blocks=8
    ),
)


def judge(num_prompt_tokens, **options):
    member = context_length.enginebay_admission(context_length.Options(**options), CONTEXT)
    ask = Ask(request_id="r", tenant="t", n=1, arrival=0.0, num_prompt_tokens=num_prompt_tokens)
    return member.ask(ask, LOAD)


@pytest.mark.parametrize("length", [None, 1, 63])
def test_a_prompt_that_leaves_room_is_admitted(length):
    """One token below the limit is enough; at the door the length is unknown."""
    assert judge(length) is None


@pytest.mark.parametrize("length", [64, 65, 10**9])
def test_case_11_a_prompt_of_the_limit_or_more_is_refused_for_good(length):
    """Case 11: at exactly the limit nothing could follow; the answer states the counts."""
    refusal = judge(length)
    assert refusal is not None
    assert (refusal.kind, refusal.param, refusal.plugin) == ("invalid", "prompt", "context")
    assert (refusal.limit, refusal.current, refusal.retry_after) == (64, length, None)
    assert str(length) in refusal.message
    assert "64" in refusal.message


def test_room_for_the_answer_can_be_asked_for():
    """``min_output_tokens`` moves the edge."""
    assert judge(48, min_output_tokens=16) is None
    assert judge(49, min_output_tokens=16) is not None


@pytest.mark.parametrize("tokens", [0, -1, 64])
def test_an_impossible_option_stops_the_start(tokens):
    """The message names the member, the option, its value and the range."""
    with pytest.raises(StackError, match=f"context: min_output_tokens is {tokens}.*64"):
        judge(1, min_output_tokens=tokens)


def at_the_door(chars, longest_token=8, **options):
    context = AdmissionContext(
        name="context", limits=CONTEXT.limits, chain="door", longest_token=longest_token
    )
    member = context_length.enginebay_admission(context_length.Options(**options), context)
    return member.ask(Ask(request_id="r", tenant="t", n=1, arrival=0.0, prompt_chars=chars), LOAD)


def test_the_door_refuses_what_no_tokenizer_could_shorten_enough():
    """63 tokens of at most eight characters: a text of 504 may fit, one of 505 can't."""
    assert at_the_door(504) is None
    refusal = at_the_door(505)
    assert (refusal.kind, refusal.reason) == ("invalid", "context_length_exceeded")
    assert (refusal.limit, refusal.current, refusal.param) == (504, 505, "prompt")
    assert "505 characters" in refusal.message


def test_a_run_of_the_longest_token_passes_the_door():
    """Spaces that one token of the vocabulary stands for: 63 tokens of 128 are legitimate."""
    assert at_the_door(63 * 128, longest_token=128) is None
    assert at_the_door(63 * 128 + 1, longest_token=128) is not None


def test_the_doors_bound_can_be_set_and_is_open_when_nothing_is_known():
    """The option goes before the vocabulary; ids count as four characters, so never less."""
    assert at_the_door(63 * 10, max_chars_per_token=10) is None
    assert at_the_door(63 * 10 + 1, max_chars_per_token=10) is not None
    assert at_the_door(10**9, longest_token=0) is None
    assert at_the_door(63 * 4, longest_token=2) is None
