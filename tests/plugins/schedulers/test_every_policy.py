"""Every policy that ships, over every allocator that ships, with either way to give way."""

import random

import msgspec
import pytest

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of, random_world, require_all_well
from enginebay.hookspecs.allocator import AllocatorContext
from enginebay.hookspecs.families import FAMILIES
from enginebay.hookspecs.scheduler import SchedulerContext
from enginebay.registry import Registry, discover
from enginebay.stack import Entry


def shipped(family):
    """Names of the plugins of a family that come with the engine."""
    found = discover(FAMILIES[family])
    return sorted(plugin.name for plugin in found if plugin.distribution == "enginebay")


@pytest.fixture(scope="module")
def registry():
    """Plugins are loaded once."""
    return Registry()


@pytest.fixture
def build(registry):
    """Build a plugin of a family by name."""

    def built(family, name, context, **options):
        kind = FAMILIES[family]
        registry.load(kind, name)
        entry = Entry(slot=kind.slots[0], use=name, name=name, options=options)
        return registry.build(kind, entry, context)

    return built


@pytest.mark.parametrize("allocator", shipped("allocator"))
@pytest.mark.parametrize("policy", shipped("scheduler"))
def test_random_worlds_over_every_allocator(policy, allocator, build):
    """Policies and allocators know nothing of each other, and every answer is right; with
    swap space, one plan in flight or two."""
    for seed, slots, depth in ((3, 0, 1), (6, 20, 2)):
        world = random_world(seed, num_requests=16)
        limits = msgspec.structs.replace(world.limits, num_swap_blocks=slots, num_blocks=24)

        def make_allocator(num_blocks, block_size, longest=limits.max_model_len):
            context = AllocatorContext(
                num_blocks=num_blocks, block_size=block_size, max_model_len=longest
            )
            return build("allocator", allocator, context)

        harness = Harness(
            lambda given: build("scheduler", policy, SchedulerContext(limits=given)),
            limits,
            make_allocator=make_allocator,
            depth=depth,
        )
        harness.play(world.happenings)
        require_all_well(harness, f"{policy} over {allocator}")


@pytest.mark.parametrize("how", ["recompute", "swap"])
@pytest.mark.parametrize("policy", shipped("scheduler"))
def test_a_pool_of_sixteen_blocks_serves_thirty_two(policy, how, build):
    """All finish, with the tokens that they would have in any pool; some gave way, as the
    policy was told to."""
    noise = random.Random(7)
    limits = limits_of(num_blocks=16, max_model_len=60, num_swap_blocks=64)
    harness = Harness(
        lambda given: build("scheduler", policy, SchedulerContext(limits=given), preemption=how),
        limits,
    )
    names = [f"r{number}" for number in range(32)]
    for name in names:
        count = noise.randint(2, 12)
        harness.submit(request_of(name, num_prompt=count, max_tokens=30 + noise.randint(0, 10)))
    harness.finish()
    require_all_well(harness, policy)
    assert {harness.answers.of[name].reasons for name in names} == {("length",)}
    events = [e for name in names for e in harness.intake.timeline.of(name)]
    ways = [event["how"] for event in events if event["what"] == "preempted"]
    assert {*ways} == {how}


@pytest.mark.parametrize("policy", shipped("scheduler"))
def test_a_stalled_sequence_gives_way_before_one_that_runs(policy, build):
    """Two that run lack a block between them; the oldest's reader is behind, so it goes."""
    harness = Harness(
        lambda given: build("scheduler", policy, SchedulerContext(limits=given)),
        limits_of(num_blocks=10, max_model_len=32),
    )

    def play_until(there):
        while not there():
            harness.turn()
            harness.clock.wait_until(harness.clock.now + 0.001)

    harness.submit(request_of("slow", num_prompt=10, max_tokens=10, window=2))
    play_until(lambda: harness.answers.of["slow"].num_tokens == 2)
    harness.submit(request_of("one", num_prompt=10, max_tokens=10))
    harness.submit(request_of("two", num_prompt=2, max_tokens=11))
    play_until(lambda: harness.answers.of["one"].ended and harness.answers.of["two"].ended)
    harness.write("slow", 10)
    harness.finish()
    require_all_well(harness, policy)
    usage = [answer.ended.usage.num_preemptions for answer in harness.answers.of.values()]
    assert usage == [1, 0, 0]
