"""No policy can overcommit or hang an engine that has swap space, or lose what is in it."""

import msgspec
import pytest

from enginebay.conformance.harness import Harness
from enginebay.conformance.mutants.expecting import Expecting
from enginebay.conformance.mutants.hostile import SURVIVED
from enginebay.conformance.worlds import random_world, require_all_well


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("hostile", SURVIVED, ids=lambda kind: kind.__name__)
def test_hostile_policies_are_survived_with_swap_space(hostile, depth):
    """Few slots and many: every plan is safe, every request ends rightly, slots come back."""
    for seed, slots in ((1, 5), (4, 40)):
        world = random_world(seed, num_requests=10)
        limits = msgspec.structs.replace(world.limits, num_swap_blocks=slots)
        harness = Harness(hostile, limits, depth=depth)
        swap = harness.engine.blocks.swap
        harness.play(world.happenings, each_turn=swap.check_integrity, max_turns=30_000)
        require_all_well(harness, "core/rescue")
        assert swap.num_used == 0


@pytest.mark.parametrize("hostile", SURVIVED, ids=lambda kind: kind.__name__)
def test_hostile_policies_are_survived_where_prefixes_are_awaited(hostile):
    """An allocator that caches, and says which prefixes are coming, changes nothing."""
    world = random_world(20, num_requests=10)
    harness = Harness(hostile, world.limits, make_allocator=Expecting)
    harness.play(world.happenings, max_turns=30_000)
    require_all_well(harness, "core/rescue")
