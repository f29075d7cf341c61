"""Fair shares: what is charged, who is lifted, who takes whose seat, what is remembered."""

from types import SimpleNamespace

import msgspec
import pytest

from enginebay.conformance.effort import CountedScheduler, Effort
from enginebay.conformance.fairness import ServiceMeter
from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of, random_world, require_all_well
from enginebay.errors import IntegrityError, StackError
from enginebay.hookspecs.scheduler import SchedulerContext
from enginebay.plugins.schedulers.fair import Fair, Options, enginebay_scheduler
from enginebay.plugins.schedulers.lanes import WaitingLanes
from enginebay.plugins.schedulers.service import MAX_IDLE, Service, Tenant


def harness_of(options=None, *, depth=1, **limits):
    """An engine with this policy."""
    return Harness(
        lambda given: Fair(options or Options(), given), limits_of(**limits), depth=depth
    )


def come(harness, name, tenant, num_prompt=6, max_tokens=4, **fields):
    """Submit; later ones arrive later."""
    harness.clock.wait_until(harness.clock.now + 1e-6)
    harness.submit(
        request_of(name, num_prompt=num_prompt, max_tokens=max_tokens, tenant=tenant, **fields)
    )


def preempted(harness, name):
    """Why a request gave way, each time."""
    events = harness.intake.timeline.of(name)
    return [event["reason"] for event in events if event["what"] == "preempted"]


def counter(harness, tenant):
    """What a tenant has been charged, by weight."""
    return harness.scheduler.service.tenants[tenant].counter


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", [1, 4, 20])
def test_swapping_two_plans_ahead_loses_nothing(seed, depth):
    """Tight pools, host memory, several tenants: all end rightly, and nothing is left."""
    world = random_world(seed)
    limits = msgspec.structs.replace(world.limits, num_swap_blocks=20)
    options = Options(preemption="swap", lead=20.0)
    harness = Harness(lambda given: Fair(options, given), limits, depth=depth)
    harness.play(world.happenings, each_turn=harness.scheduler.check_integrity)
    require_all_well(harness, "fair")
    service = harness.scheduler.service
    assert (service.accounts, service.num_seats, service.total_weight) == ({}, 0, 0.0)


@pytest.mark.parametrize("how", ["recompute", "swap"])
def test_what_is_charged_is_what_was_computed_once(how):
    """Whoever is preempted pays nothing twice: the account is equal to what the executor
    did, token by token, in a pool too small for everybody."""
    options = Options(preemption=how, lead=30.0, weights={"a": 2.0})
    harness = harness_of(options, num_blocks=14, max_model_len=50, num_swap_blocks=20)
    meter = ServiceMeter(harness, weights={"a": 2.0})
    names = [f"{tenant}{number}" for number in range(8) for tenant in "abc"]
    for name in names:
        come(harness, name, name[0], num_prompt=9, max_tokens=30)
    harness.turn()
    while len(meter.backlogged()) == 3:
        tenants = harness.scheduler.service.tenants
        charged = {name: tenant.counter for name, tenant in tenants.items()}
        assert charged == pytest.approx(meter.served)
        harness.turn()
    assert sum(len(preempted(harness, name)) for name in names) > 5
    harness.finish()
    require_all_well(harness, "fair")
    assert meter.served == pytest.approx({"a": 8 * 69 / 2, "b": 8 * 69, "c": 8 * 69})


def test_who_was_served_least_goes_first():
    """With one seat tenants take turns by service, not by arrival; each is served in order."""
    harness = harness_of(Options(preempt=False), max_sequences=1)
    for name in ("a1", "a2", "a3", "b1", "b2"):
        come(harness, name, name[0], max_tokens=4 if name[0] == "a" else 1)
    harness.finish()
    ends = {name: answer.ended_at for name, answer in harness.answers.of.items()}
    assert sorted(ends, key=ends.get) == ["a1", "b1", "b2", "a2", "a3"]


def test_who_comes_back_has_saved_up_nothing():
    """A tenant that begins to wait is lifted to the least of those that wait, and never
    lowered."""
    harness = harness_of(max_sequences=1)
    for number in range(6):
        come(harness, f"a{number}", "a")
    harness.turn()
    while counter(harness, "a") < 30:
        harness.turn()
    come(harness, "b0", "b", num_prompt=20)
    harness.turn()
    assert counter(harness, "b") >= counter(harness, "a") - 10
    come(harness, "b1", "b")
    ahead = counter(harness, "b")
    harness.finish()
    come(harness, "b2", "b")
    harness.turn()
    assert counter(harness, "b") >= ahead


def test_who_asks_for_no_more_than_its_share_gets_a_seat_at_once():
    """Of four seats held by one tenant another may have two; a third waits."""
    harness = harness_of(max_sequences=4)
    for number in range(8):
        come(harness, f"heavy{number}", "heavy", max_tokens=60)
    for _ in range(5):
        harness.turn()
    come(harness, "light", "light", max_tokens=2)
    harness.turn()
    assert harness.answers.of["light"].first_token_at == harness.clock.now
    assert [preempted(harness, f"heavy{number}") for number in range(4)] == [
        [],
        [],
        [],
        ["fairness"],
    ]
    harness.finish()
    require_all_well(harness, "fair")


def test_a_backlog_takes_seats_only_from_who_is_far_ahead():
    """Two backlogged tenants trade seats as they become free; preempting would be waste."""
    harness = harness_of(Options(lead=10_000.0), max_sequences=4)
    for tenant in "ab":
        for number in range(12):
            come(harness, f"{tenant}{number}", tenant, max_tokens=20)
    harness.finish()
    assert not any(preempted(harness, name) for name in harness.answers.of)


def test_seats_go_round_when_there_are_more_tenants_than_seats():
    """Nobody waits for a whole long answer: who is ahead by the lead makes room for one that
    has no seat."""
    firsts = {}
    for lead in (40.0, 10_000.0):
        harness = harness_of(Options(lead=lead), max_sequences=2)
        for tenant in "abcd":
            come(harness, tenant, tenant, max_tokens=150)
        harness.finish()
        require_all_well(harness, "fair")
        firsts[lead] = harness.answers.of["d"].first_token_at
    assert firsts[40.0] < 0.3 * firsts[10_000.0]


def test_no_seat_is_taken_where_that_is_switched_off():
    """``preempt = false``: a newcomer waits for a seat to become free."""
    harness = harness_of(Options(preempt=False, lead=1.0), max_sequences=1)
    come(harness, "heavy", "heavy", max_tokens=60)
    harness.turn()
    come(harness, "light", "light")
    harness.finish()
    assert preempted(harness, "heavy") == []


def test_weights_are_shares():
    """A tenant of weight 3 gets three times the service of one of weight 1."""
    harness = harness_of(Options(weights={"a": 3.0}), max_sequences=4)
    meter = ServiceMeter(harness)
    for number in range(60):
        come(harness, f"a{number}", "a", max_tokens=8)
        come(harness, f"b{number}", "b", max_tokens=8)
    for _ in range(100):
        harness.turn()
    assert meter.backlogged() == {"a", "b"}
    assert meter.served["a"] / meter.served["b"] == pytest.approx(3.0, rel=0.1)


def test_idle_tenants_are_forgotten_once_that_gives_them_nothing():
    """Three hundred tenants of one request each leave a handful of counters; one that is ahead
    is remembered until the others have caught up."""
    harness = harness_of(max_sequences=4)
    tenants = harness.scheduler.service.tenants
    come(harness, "greedy", "greedy", num_prompt=60, max_tokens=60)
    harness.finish()
    for number in range(300):
        come(harness, f"r{number}", f"tenant-{number}", num_prompt=2, max_tokens=1)
        if number % 3 == 2:
            harness.turn()
            assert len(tenants) < 40
    harness.finish()
    assert len(tenants) < 40


def test_the_memory_of_tenants_is_bounded():
    """However far ahead they all are, the least ahead are forgotten beyond the bound."""
    service = Service(1.0, 2.0, {})
    for number in range(MAX_IDLE + 50):
        service.enter(sequence(number, f"t{number}"))
        service.tenants[f"t{number}"].counter = 1.0 + number
        service.leave(number)
    assert len(service.tenants) == MAX_IDLE
    assert "t49" not in service.tenants
    assert "t50" in service.tenants


def effort_of_steps(num_tenants):
    """Reads and lines of ten steps with three requests of each tenant."""
    effort = Effort()
    harness = Harness(
        lambda given: CountedScheduler(Fair(Options(), given), effort),
        limits_of(num_blocks=200),
        verify=False,
    )
    for number in range(3 * num_tenants):
        come(harness, f"r{number}", f"tenant-{number % num_tenants}", max_tokens=3)
    harness.turn()
    effort.reset()
    for _ in range(10):
        harness.turn()
    return effort.total


def test_a_step_costs_no_more_the_more_tenants_wait():
    """Fifty times as many tenants: at most twice the work."""
    few, many = effort_of_steps(10), effort_of_steps(500)
    assert many < 2 * few


def test_a_seat_that_the_core_took_or_gave_is_noticed():
    """Preemptions and starts that the policy did not make: seats are counted rightly."""
    service, runs = Service(1.0, 2.0, {}), [sequence(1), sequence(2)]
    for running in runs:
        service.seat(running)
    runs[0].num_preemptions += 1
    service.reconcile([runs[1]], 1)
    assert (service.num_seats, service.tenants["t"].seats) == (1, 1)
    service.reconcile([runs[1], sequence(3)], 2)
    assert (service.num_seats, service.tenants["t"].seats) == (2, 2)


def sequence(number, tenant="t", arrival=0.0):
    """Something that can be queued and charged."""
    return SimpleNamespace(
        id=number,
        tenant=tenant,
        arrival=arrival,
        num_prompt=4,
        num_tokens=4,
        num_computed=0,
        num_generated=0,
        num_preemptions=0,
    )


def test_a_lane_follows_its_tenants_counter():
    """Counters rise behind the queue's back; the least is first all the same."""
    tenants = [Tenant(name, 1.0) for name in "ab"]
    lanes = WaitingLanes(lambda number: tenants[number % 2])
    for number in range(6):
        lanes.add(sequence(number, arrival=float(number)))
    assert lanes.first().id == 0
    tenants[0].counter = 5.0
    assert (lanes.first().id, lanes.level()) == (1, 0.0)
    for number in (1, 3, 5):
        lanes.remove(number)
    assert (lanes.first().id, lanes.level(), len(lanes)) == (0, 5.0, 3)
    lanes.check_integrity()
    lanes._heap.clear()
    with pytest.raises(IntegrityError, match="0 of 1 tenants"):
        lanes.check_integrity()


def test_a_wrong_account_is_seen():
    """Seats that nobody holds would keep a tenant from its share."""
    service = Service(1.0, 2.0, {})
    service.seat(sequence(1))
    service.check_integrity()
    service.tenants["t"].seats = 2
    with pytest.raises(IntegrityError, match=r"counts \(1, 2\), not \(1, 1\)"):
        service.check_integrity()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (Options(weights={"a": 0.0}), r"weights\.a is 0\.0"),
        (Options(output_price=-1.0), r"output_price is -1\.0"),
        (Options(input_price=float("nan")), "input_price is nan"),
        (Options(lead=0.0), r"lead is 0\.0"),
        (Options(max_chunk=0), "max_chunk is 0"),
    ],
)
def test_wrong_options_are_named(options, told):
    """The start stops and says which value is wrong."""
    with pytest.raises(StackError, match=told):
        enginebay_scheduler(options, SchedulerContext(limits=limits_of()))
