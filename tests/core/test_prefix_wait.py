"""A prefix that somebody is computing is waited for, not computed twice."""

import pytest

from enginebay.conformance.harness import Harness
from enginebay.conformance.mutants.caching import Caching
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of, require_all_well
from enginebay.hookspecs.allocator import AllocatorContext
from enginebay.plugins.allocators import prefix_hash, prefix_radix
from enginebay.plugins.schedulers.chunked import Chunked, Options

PREFIX = [1 + number % 90 for number in range(40)]


def built(plugin):
    """A factory of what a plugin's hook builds."""
    return lambda blocks, size: plugin.enginebay_allocator(
        plugin.Options(), AllocatorContext(blocks, size)
    )


ALLOCATORS = {
    "caching": Caching,
    "prefix-hash": built(prefix_hash),
    "prefix-radix": built(prefix_radix),
}


@pytest.fixture(params=ALLOCATORS)
def harness(request):
    """An engine whose steps compute 16 positions."""
    limits = limits_of(num_blocks=200, max_step_tokens=16)
    make = ALLOCATORS[request.param]
    return Harness(lambda given: Chunked(Options(), given), limits, make_allocator=make)


def computed(harness, tenants):
    """Positions computed for requests with one prompt prefix, by tenant."""
    for number, tenant in enumerate(tenants):
        prompt = [*PREFIX, 50 + number]
        request = request_of(f"r{number}", num_prompt=0, max_tokens=3, tenant=tenant, prompt=prompt)
        harness.submit(request)
    total = []
    execute = harness.executor.execute

    def counted(plan):
        total.append(plan.num_tokens)
        return execute(plan)

    harness.executor.execute = counted
    harness.finish()
    require_all_well(harness, "core/prefix")
    return sum(total)


def test_twenty_at_once_compute_one_prefix(harness):
    """All but the first wait until it is there, then compute their own last token."""
    assert computed(harness, ["a"] * 20) == 40 + 20 * (1 + 2)
    waits = [e["reason"] for e in harness.intake.timeline.of("r5") if e["what"] == "waiting"]
    assert waits[0] == "prefix"


def test_nobody_waits_for_a_stranger(harness):
    """Another tenant's prefix is another prefix: it is neither found nor waited for."""
    assert computed(harness, ["a", "b"]) == 2 * (40 + 1 + 2)


@pytest.mark.parametrize("when", [1, 2])
def test_who_waits_for_one_that_leaves_goes_on(harness, when):
    """The one that computes is cancelled: the next computes instead."""
    for number in range(5):
        prompt = [*PREFIX, number + 3]
        harness.submit(request_of(f"r{number}", num_prompt=0, max_tokens=3, prompt=prompt))
    for _ in range(when):
        harness.turn()
    harness.cancel("r0")
    harness.finish()
    require_all_well(harness, "core/prefix")


def test_who_waits_for_one_that_is_preempted_goes_on(harness):
    """The one that computes loses its blocks: the next one starts in the same step, and
    the first waits for it in turn, not for itself."""
    for number in range(3):
        prompt = [*PREFIX, number + 3]
        harness.submit(request_of(f"r{number}", num_prompt=0, max_tokens=3, prompt=prompt))
    harness.turn()
    plan, preempted = harness.scheduler.plan, []

    def pushing(build):
        for sequence in build.running if not preempted else ():
            preempted.append(sequence.request_id)
            build.preempt(sequence, "recompute")
        plan(build)

    harness.scheduler.plan = pushing
    harness.turn()
    assert preempted == ["r0"]
    assert [s.request_id for s in harness.roster.seats.values()] == ["r1"]
    harness.finish()
    require_all_well(harness, "core/prefix")


def test_what_is_shared_takes_no_free_block():
    """Twelve requests of 40 shared and 10 own tokens run at once where 3 would fit apart."""
    harness = Harness(
        lambda given: Chunked(Options(), given),
        limits_of(num_blocks=46, block_size=4, max_sequences=12, max_model_len=120),
        make_allocator=built(prefix_hash),
    )
    prefix = [1 + number % 90 for number in range(40)]
    for number in range(12):
        prompt = [*prefix, 50 + number, *range(1, 8)]
        request = request_of(f"r{number}", num_prompt=0, max_tokens=3, prompt=prompt)
        harness.submit(request)
    harness.finish()
    require_all_well(harness, "core/prefix")
    assert harness.audit.most_seats == 12
