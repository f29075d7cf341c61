"""The tenant-quota plugin: each tenant has its own places, and no other's."""

import pytest

from enginebay.errors import StackError
from enginebay.plugins.admission import tenant_quota


@pytest.fixture
def make(context_of):
    def make(**options):
        return tenant_quota.enginebay_admission(tenant_quota.Options(**options), context_of())

    return make


def test_requests_of_a_tenant_are_bounded(make, ask_of, load_of):
    """The third of two is refused with 429; another tenant's is not."""
    quota = make(max_requests=2)
    assert quota.ask(ask_of("a"), load_of()) is None
    assert quota.ask(ask_of("b"), load_of()) is None
    refusal = quota.ask(ask_of("c"), load_of())
    assert (refusal.kind, refusal.reason, refusal.plugin) == ("caller", "tenant_requests", "member")
    assert (refusal.limit, refusal.current) == (2, 2)
    assert quota.ask(ask_of("d", tenant="other"), load_of()) is None
    quota.release("a")
    assert quota.ask(ask_of("c"), load_of()) is None


def test_choices_of_a_tenant_are_bounded(make, ask_of, load_of):
    """Four of six are held: two more fit, three don't; seven never will."""
    quota = make(max_requests=0, max_choices=6)
    assert quota.ask(ask_of("a", n=4), load_of()) is None
    refusal = quota.ask(ask_of("b", n=3), load_of())
    assert (refusal.kind, refusal.reason, refusal.current) == ("caller", "tenant_choices", 4)
    assert quota.ask(ask_of("c", n=2), load_of()) is None
    never = quota.ask(ask_of("d", n=7, tenant="new"), load_of())
    assert (never.kind, never.param, never.current) == ("invalid", "n", 7)


def test_named_tenants_have_their_own_bounds(make, ask_of, load_of):
    """One may have more, one has no bound, the rest have the usual."""
    tenants = {
        "large": tenant_quota.Quota(max_requests=3),
        "free": tenant_quota.Quota(max_requests=0),
    }
    quota = make(max_requests=1, tenants=tenants)

    def admitted(tenant):
        answers = [quota.ask(ask_of(f"{tenant}{i}", tenant=tenant), load_of()) for i in range(5)]
        return answers.count(None)

    assert [admitted(tenant) for tenant in ("large", "free", "small")] == [3, 5, 1]


def test_nobody_is_remembered_who_holds_nothing(make, ask_of, load_of):
    """A thousand tenants leave no trace."""
    quota = make()
    for number in range(1000):
        quota.ask(ask_of(str(number), tenant=str(number)), load_of())
        quota.release(str(number))
    assert not quota._held
    assert not quota._of


def test_retry_after_is_when_one_of_the_tenants_own_ends(make, ask_of, load_of):
    """One of four requests is its: at two a second its own ends in about two seconds."""
    quota = make(max_requests=1)
    quota.ask(ask_of("mine"), load_of())
    for name in "abc":
        quota.ask(ask_of(name, tenant=name), load_of())
    refusal = quota.ask(ask_of("next"), load_of(requests_per_second=2.0))
    assert 2.0 <= refusal.retry_after <= 3.0


def test_wrong_options_stop_the_start(make):
    """Those of a named tenant too."""
    with pytest.raises(StackError, match="member: max_requests is -1"):
        make(max_requests=-1)
    with pytest.raises(StackError, match=r"member: tenants.x.max_choices is -2"):
        make(tenants={"x": tenant_quota.Quota(max_choices=-2)})
