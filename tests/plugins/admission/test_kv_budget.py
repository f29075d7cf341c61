"""The kv-budget plugin: what never fits is refused at once, claims stay in the pool."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.errors import StackError
from enginebay.hookspecs.admission import AdmissionContext, Ask, Load
from enginebay.hookspecs.model import Limits
from enginebay.plugins.admission import kv_budget

BLOCK, BLOCKS, LENGTH = 16, 8, 1024


def make(**options):
    limits = Limits(
        max_model_len=LENGTH,
        max_step_tokens=16,
        max_sequences=4,
        block_size=BLOCK,
        num_blocks=0,  # not known when the chain is built
    )
    return kv_budget.enginebay_admission(
        kv_budget.Options(**options), AdmissionContext(name="kv", limits=limits)
    )


def ask(tokens, request_id="r", n=1, max_tokens=1):
    return Ask(
        request_id=request_id,
        tenant="t",
        n=n,
        arrival=0.0,
        num_prompt_tokens=tokens,
        max_tokens=max_tokens,
    )


def load(pace=0.0):
    return Load(
        now=0.0,
        num_waiting=0,
        num_running=0,
        waiting_tokens=0,
        num_free_blocks=BLOCKS,
        num_blocks=BLOCKS,
        requests_per_second=pace,
    )


def test_a_prompt_as_large_as_the_pool_fits_and_one_token_more_never_does():
    """The last token of an answer is not computed, so a full pool still gives one token."""
    assert make().ask(ask(BLOCK * BLOCKS), load()) is None
    refusal = make().ask(ask(BLOCK * BLOCKS + 1), load())
    assert refusal is not None
    assert (refusal.kind, refusal.reason, refusal.plugin) == ("invalid", "kv_capacity", "kv")
    assert (refusal.limit, refusal.current, refusal.retry_after) == (8, 9, None)


def test_optimistic_counts_the_declared_share_of_the_answer():
    """Half of 128 tokens beside a prompt of 80 are nine blocks; a quarter are seven."""
    assert make(output_share=0.25).ask(ask(80, max_tokens=128), load()) is None
    assert make(output_share=0.5).ask(ask(81, max_tokens=128), load()) is not None
    assert make().ask(ask(81, max_tokens=128), load()) is None


def test_guaranteed_counts_the_whole_answer_of_every_choice():
    """Full prompt blocks are shared by the choices, the rest is counted for each."""
    assert make(mode="guaranteed").ask(ask(32, n=2, max_tokens=49), load()) is None
    refusal = make(mode="guaranteed").ask(ask(32, n=2, max_tokens=50), load())
    assert refusal is not None
    assert (refusal.kind, refusal.current) == ("invalid", 10)


def test_no_max_tokens_means_up_to_the_context_limit():
    """An open-ended request is counted with all that it may generate."""
    assert make(mode="guaranteed").ask(ask(16, max_tokens=None), load()) is not None
    assert make().ask(ask(16, max_tokens=None), load()) is None


def test_claims_of_all_admitted_requests_stay_below_the_bound():
    """Overcommit 1.5 of 8 blocks are 12; released claims make room again."""
    budget = make(overcommit=1.5)
    assert budget.ask(ask(96, "a"), load()) is None
    assert budget.ask(ask(96, "b"), load()) is None
    refusal = budget.ask(ask(16, "c"), load(pace=0.25))
    assert refusal is not None
    assert (refusal.kind, refusal.reason) == ("server", "kv_claimed")
    assert (refusal.limit, refusal.current) == (12, 12)
    assert refusal.retry_after >= 1.0
    budget.release("a")
    budget.release("a")
    assert budget.ask(ask(96, "c"), load()) is None
    assert budget.ask(ask(16, "d"), load()) is not None


def test_retry_after_follows_the_engines_pace():
    """Four blocks more are one mean request: at one in four seconds that is four."""
    budget = make(mode="guaranteed")
    budget.ask(ask(64, "a"), load())
    budget.ask(ask(64, "b"), load())
    refusal = budget.ask(ask(64, "c"), load(pace=0.25))
    assert refusal is not None
    assert 4.0 <= refusal.retry_after <= 6.0


def test_without_overcommit_only_the_single_request_is_judged():
    """0 is off: any number of requests that fit alone are admitted."""
    budget = make()
    assert all(budget.ask(ask(128, str(number)), load()) is None for number in range(20))


def test_at_the_door_it_says_where_it_belongs():
    """The prompt's length is unknown there, so the start stops."""
    limits = Limits(
        max_model_len=64, max_step_tokens=16, max_sequences=4, block_size=16, num_blocks=0
    )
    context = AdmissionContext(name="kv", limits=limits, chain="door")
    with pytest.raises(StackError, match=r"kv: .* list it under budget"):
        kv_budget.enginebay_admission(kv_budget.Options(), context)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"output_share": 1.5}, "output_share is 1.5"),
        ({"overcommit": -1.0}, "overcommit is -1.0"),
        ({"mode": "guaranteed", "overcommit": 2.0}, "overcommit is 2.0"),
    ],
)
def test_an_impossible_option_stops_the_start(options, told):
    """The message names the member, the option and its value."""
    with pytest.raises(StackError, match=f"kv: {told}"):
        make(**options)


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 4), st.booleans()), max_size=30))
def test_guaranteed_claims_never_exceed_the_pool(requests):
    """Whatever comes and goes, the admitted requests' worst case fits together."""
    budget, held = make(mode="guaranteed"), {}
    for number, (tokens, n, leaves) in enumerate(requests):
        request = ask(tokens, str(number), n=n, max_tokens=tokens)
        if budget.ask(request, load()) is None:
            full, rest = divmod(tokens, BLOCK)
            held[str(number)] = full + n * -(-(rest + tokens - 1) // BLOCK)
        assert sum(held.values()) <= BLOCKS
        if leaves and held:
            gone = next(iter(held))
            held.pop(gone)
            budget.release(gone)
