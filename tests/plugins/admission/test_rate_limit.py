"""The rate-limit plugin: exact waits, bursts, refunds, and a memory that forgets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from enginebay.errors import StackError
from enginebay.flow import Usage
from enginebay.hookspecs.admission import AdmissionContext, Ask, Load
from enginebay.hookspecs.model import Limits
from enginebay.plugins.admission import rate_limit
from enginebay.plugins.admission.buckets import Bucket, Tenants

LIMITS = Limits(
    max_model_len=1000, max_step_tokens=16, max_sequences=4, block_size=16, num_blocks=8
)
LOAD = Load(
    now=0.0,
    num_waiting=0,
    num_running=0,
    waiting_tokens=0,
    num_free_blocks=8,
    num_blocks=8,
    requests_per_second=0.0,
)


def make(chain="budget", **options):
    context = AdmissionContext(name="member", limits=LIMITS, chain=chain)
    return rate_limit.enginebay_admission(rate_limit.Options(**options), context)


def ask(request_id="r", tenant="t", n=1, prompt=10, max_tokens=10):
    return Ask(
        request_id=request_id,
        tenant=tenant,
        n=n,
        arrival=0.0,
        num_prompt_tokens=prompt,
        max_tokens=max_tokens,
    )


def at(now):
    return replace(LOAD, now=now)


def test_a_burst_then_the_rate():
    """Six a minute in bursts of three: three at once, then one each ten seconds."""
    limit = make(requests=6.0, burst_requests=3.0)
    assert [limit.ask(ask(str(i)), at(100.0)) for i in range(3)] == [None] * 3
    refusal = limit.ask(ask("x"), at(100.0))
    assert (refusal.kind, refusal.reason) == ("caller", "rate_requests")
    assert (refusal.limit, refusal.current, refusal.retry_after) == (3.0, 3.0, 10.0)
    assert limit.ask(ask("x"), at(104.0)).retry_after == pytest.approx(6.0, abs=0.002)
    assert limit.ask(ask("x"), at(109.9)) is not None
    assert limit.ask(ask("x"), at(110.0)) is None
    assert limit.ask(ask("y"), at(110.0)) is not None
    assert limit.ask(ask("z", tenant="other"), at(110.0)) is None


def test_tokens_are_paid_for_as_asked_and_given_back_as_not_used():
    """Of 1000 a request takes 10 + 2 x 200 and uses 60: 940 are left, not 590."""
    limit = make(requests=0.0, tokens=1000.0, period=1e9)
    assert limit.ask(ask("a", n=2, max_tokens=200), LOAD) is None
    refusal = limit.ask(ask("b", max_tokens=590), LOAD)
    assert (refusal.reason, refusal.limit, refusal.current) == ("rate_tokens", 1000.0, 410.0)
    limit.settle("a", Usage(prompt_tokens=10, completion_tokens=50))
    limit.release("a")
    assert limit.ask(ask("b", max_tokens=931), LOAD) is not None
    assert limit.ask(ask("b", max_tokens=930), LOAD) is None


def test_who_was_turned_away_gets_all_tokens_back_but_not_the_request():
    """A release without a settlement: nothing was used; asking still has its price."""
    limit = make(requests=2.0, tokens=1000.0, period=1e9)
    for name in "ab":
        assert limit.ask(ask(name, max_tokens=900), LOAD) is None
        limit.release(name)
    assert limit.ask(ask("c"), LOAD).reason == "rate_requests"


def test_without_refund_a_large_max_tokens_has_its_price():
    """The settlement gives nothing back, nor does the release after it."""
    limit = make(requests=0.0, tokens=1000.0, period=1e9, refund=False)
    limit.ask(ask("a", max_tokens=500), LOAD)
    limit.settle("a", Usage(prompt_tokens=10, completion_tokens=1))
    limit.release("a")
    assert limit.ask(ask("b", max_tokens=500), LOAD) is not None


def test_what_exceeds_the_burst_is_wrong_for_good():
    """No wait fills a bucket past its size."""
    refusal = make(requests=0.0, tokens=100.0).ask(ask(max_tokens=91), LOAD)
    assert (refusal.kind, refusal.param, refusal.current) == ("invalid", "max_tokens", 101)
    assert make(requests=0.0, tokens=100.0).ask(ask(max_tokens=90), LOAD) is None
    endless = make(requests=0.0, tokens=999.0).ask(ask(max_tokens=None), LOAD)
    assert endless.current == 1000


def test_named_tenants_have_their_own_rates():
    """One has more, one is not limited at all."""
    own = {"big": rate_limit.Rate(requests=4.0), "free": rate_limit.Rate(requests=0.0)}
    limit = make(requests=2.0, tenants=own)

    def admitted(tenant):
        answers = [limit.ask(ask(f"{tenant}{i}", tenant), LOAD) for i in range(6)]
        return answers.count(None)

    assert [admitted(tenant) for tenant in ("big", "free", "small")] == [4, 6, 2]


def test_tenants_are_forgotten_when_they_have_everything_back():
    """Memory follows what was used lately, not who ever came."""
    limit = make(requests=60.0)
    for number in range(500):
        limit.ask(ask(str(number), tenant=str(number)), at(number * 0.1))
    assert len(limit._tenants) <= 20


def test_memory_has_a_hard_bound():
    """Rates so slow that nobody is ever full again: the oldest are forgotten first."""
    tenants = Tenants(max_tenants=10)
    for number in range(50):
        tenants.keep(str(number), {"requests": Bucket(1e-9, 1.0, 0.0, 0.0)})
    assert len(tenants) == 10
    assert not tenants.get("39")
    assert tenants.get("40")


def test_less_than_one_request_in_a_period_is_one_now_and_then():
    """Half a request a minute: one in two, not none at all."""
    limit = make(requests=0.5, period=60.0)
    assert limit.ask(ask("a"), LOAD) is None
    refusal = limit.ask(ask("b"), LOAD)
    assert (refusal.reason, refusal.retry_after) == ("rate_requests", 120.0)
    assert limit.ask(ask("b"), replace(LOAD, now=120.0)) is None


def test_a_give_back_never_overfills():
    """A bucket holds its size at most."""
    bucket = Bucket(rate=1.0, size=5.0, level=4.0, at=0.0)
    bucket.give_back(3.0)
    assert bucket.level == 5.0
    bucket.refill(-1.0)
    assert bucket.at == 0.0


@pytest.mark.parametrize(
    ("chain", "options", "told"),
    [
        ("budget", {"requests": -1.0}, "requests is -1.0"),
        ("budget", {"period": 0.0}, "period is 0.0; it must be above 0"),
        ("budget", {"period": float("inf")}, "period is inf; it must be above 0 and finite"),
        ("budget", {"max_tenants": 0}, "max_tenants is 0; it must be 1 or more"),
        ("budget", {"tenants": {"x": rate_limit.Rate(tokens=-5.0)}}, "tokens is -5.0"),
        ("door", {"tokens": 100.0}, "list it under budget"),
    ],
)
def test_wrong_options_stop_the_start(chain, options, told):
    """With the member's name, the option and its value."""
    with pytest.raises(StackError, match=f"member: .*{told}"):
        make(chain, **options)


@given(
    st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(1, 300)), min_size=1, max_size=40),
    st.floats(1.0, 500.0),
)
def test_the_wait_told_is_exact(requests, rate):
    """Who waits as long as told is admitted, and half a percent less is too early."""
    limit = make(requests=0.0, tokens=rate, burst_tokens=320.0)
    now = 0.0
    for number, (pause, tokens) in enumerate(requests):
        now += pause
        request = ask(str(number), prompt=1, max_tokens=tokens)
        refusal = limit.ask(request, at(now))
        if refusal is not None:
            early = now + 0.995 * refusal.retry_after - 0.002
            assert early <= now or limit.ask(request, at(early)) is not None
            now += refusal.retry_after
            assert limit.ask(request, at(now)) is None
