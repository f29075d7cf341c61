"""Two tenants on one engine, in virtual time: how far apart service drifts, and what a
light tenant feels of a heavy one."""

import random

import pytest

from enginebay.conformance.fairness import GapWatch, ServiceMeter, vtc_bound
from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import Arrival, Leaving, request_of
from enginebay.conformance.worlds import limits_of
from enginebay.plugins.schedulers.fair import Fair, Options
from enginebay.plugins.schedulers.fcfs import Fcfs
from enginebay.plugins.schedulers.fcfs import Options as FcfsOptions

LONG, SHORT = (20, 48), (2, 8)
SHAPES = {"reader": (LONG, SHORT), "writer": (SHORT, LONG)}
"""Lengths of prompts and answers: what one tenant spends on input, the other does on output."""


class ForgetsOutputs(Fair):
    """The fault: generated tokens are not charged."""

    def __init__(self, options, limits):
        super().__init__(options, limits)
        self.service.output_price = 0.0


class DoesNotLift(Fair):
    """The fault: a tenant saves up service while it is away."""

    def _lift(self, tenant):
        """Not at all."""


def watched(scheduler=Fair, options=None, *, weights=None, depth=1, alone=0, turns=300, **limits):
    """Two backlogged tenants for so many turns. :return: harness, gap watch and VTC's bound

    :param alone: turns before the second tenant comes
    """
    weights = weights or {}
    options = options or Options(weights=weights)
    given = limits_of(**{"num_blocks": 200, "max_model_len": 56, **limits})
    harness = Harness(lambda given: scheduler(options, given), given, depth=depth, verify=False)
    meter = ServiceMeter(harness, weights=weights)
    watch = GapWatch(meter, *SHAPES)
    noise = random.Random(5)
    bound = vtc_bound(
        given, longest_prompt=48, longest=56, least_weight=min([1.0, *weights.values()])
    )
    backlog = {tenant: _Backlog(harness, tenant, noise) for tenant in SHAPES}
    for turn in range(alone + turns):
        for tenant in ("writer", "reader") if turn >= alone else ("writer",):
            backlog[tenant].fill()
        harness.turn()
        watch.look()
    return harness, watch, bound


class _Backlog:
    """Keeps more requests of one tenant in the engine than it has seats."""

    def __init__(self, harness, tenant, noise):
        self.harness, self.tenant, self.noise = harness, tenant, noise
        self.names, self.count = [], 0

    def fill(self):
        """Make up for those that ended."""
        answers = self.harness.answers.of
        self.names = [name for name in self.names if answers[name].ended is None]
        prompt, answer = SHAPES[self.tenant]
        while len(self.names) < self.harness.limits.max_sequences + 10:
            self.count += 1
            name = f"{self.tenant}{self.count}"
            request = request_of(
                name,
                num_prompt=self.noise.randint(*prompt),
                max_tokens=self.noise.randint(*answer),
                tenant=self.tenant,
            )
            self.harness.submit(request)
            self.names.append(name)


def num_preemptions(harness):
    """Of all that ended."""
    ended = [answer.ended for answer in harness.answers.of.values() if answer.ended]
    return sum(end.usage.num_preemptions for end in ended)


@pytest.mark.parametrize(
    "world",
    [
        {},
        {"weights": {"writer": 3.0}},
        {"weights": {"reader": 0.5}},
        {"depth": 2},
        {"num_blocks": 40, "num_swap_blocks": 40},
        {"alone": 100},
    ],
    ids=["equal", "writer-3", "reader-half", "two-in-flight", "small-pool", "second-comes-later"],
)
def test_service_of_backlogged_tenants_stays_together(world):
    """The gap of weighted service in any interval is below VTC's bound (Theorem 4.4) at
    every step; two tenants that want such different things are served alike."""
    harness, watch, bound = watched(**world)
    assert watch.num_steps >= 299
    assert watch.gap < bound
    assert watch.gap < bound / 4
    print(f"{world}: gap {watch.gap:.0f}, bound {bound:.0f}, {num_preemptions(harness)} preempted")


def test_a_backlog_on_both_sides_makes_nobody_preempt():
    """With room for all, fair shares cost no work that is done twice."""
    harness, _, _ = watched()
    assert num_preemptions(harness) == 0


def test_outputs_that_are_not_charged_break_the_bound():
    """The gap then grows with every step."""
    _, watch, bound = watched(ForgetsOutputs)
    assert watch.gap > bound


def test_credit_saved_up_while_away_breaks_the_bound():
    """Without the lift, who comes later has the engine to itself until it has caught up."""
    _, watch, bound = watched(DoesNotLift, alone=200)
    assert watch.gap > bound


def test_by_arrival_the_bound_does_not_hold():
    """FCFS gives service to whoever asks for more of it."""
    _, watch, bound = watched(Fcfs, FcfsOptions(), turns=500)
    assert watch.gap > bound


def light_delays(scheduler, options, heavy_load, seeds, seconds=12):
    """TTFT of the light tenant's requests, in seconds, sorted.

    Eight seats, 128 tokens a step, 12 ms a step and 0.2 ms a position: about ten of the
    heavy tenant's requests a second are all that the engine can do.

    :param heavy_load: times 7.5 requests a second
    """
    delays = []
    for seed in seeds:
        happenings = [*_poisson(f"light{seed}", 2.0, seconds, (20, 60), (5, 20))]
        heavy = [*_poisson(f"heavy{seed}", 7.5 * heavy_load, seconds, (50, 200), (20, 60))]
        happenings += heavy
        happenings += [Leaving(seconds, arrival.request.id) for arrival in heavy]
        harness = Harness(
            lambda given: scheduler(options, given),
            limits_of(max_step_tokens=128, num_blocks=1024, block_size=16, max_model_len=1000),
            cost=lambda plan: 0.012 + 0.0002 * plan.num_tokens,
            verify=False,
        )
        harness.play(happenings)
        for happening in happenings:
            if isinstance(happening, Arrival) and happening.request.tenant == "light":
                answer = harness.answers.of[happening.request.id]
                delays.append(answer.first_token_at - happening.time)
    return sorted(delays)


def _poisson(name, rate, seconds, prompt, answer):
    noise, time, number = random.Random(name), 0.0, 0
    while (time := time + noise.expovariate(rate)) < seconds:
        number += 1
        request = request_of(
            f"{name}-{number}",
            num_prompt=noise.randint(*prompt),
            max_tokens=noise.randint(*answer),
            tenant=name.rstrip("0123456789"),
        )
        yield Arrival(time, request)


def p95(delays):
    """Of a sorted list."""
    return delays[round(0.95 * (len(delays) - 1))]


def test_a_light_tenant_does_not_feel_a_heavy_ones_load():
    """Ten times the heavy tenant's load, from three quarters of the engine to seven times
    what it can do, moves the light one's p95 TTFT by less than 25 %."""
    usual, ten = (light_delays(Fair, Options(), load, seeds=(3, 4)) for load in (1, 10))
    assert len(usual) == len(ten) > 50
    print(f"fair: p95 {1000 * p95(usual):.1f} ms, at ten times the load {1000 * p95(ten):.1f} ms")
    assert p95(ten) < 1.25 * p95(usual)


def test_by_arrival_a_light_tenant_waits_behind_the_heavy_one():
    """Under FCFS the same load moves it at least five times."""
    usual, ten = (light_delays(Fcfs, FcfsOptions(), load, (1,), 10) for load in (1, 10))
    print(f"fcfs: p95 {1000 * p95(usual):.1f} ms, at ten times the load {1000 * p95(ten):.1f} ms")
    assert p95(ten) > 5 * p95(usual)
