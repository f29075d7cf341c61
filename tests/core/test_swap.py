"""Swapping: preempted sequences keep their KV blocks in host memory, and lose nothing."""

import pytest

from enginebay.conformance.harness import Harness
from enginebay.conformance.mutants.caching import Caching
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of, random_world, require_all_well
from enginebay.errors import IntegrityError
from enginebay.flow import BlockOp
from enginebay.plugins.allocators.paged import Paged
from enginebay.plugins.schedulers.chunked import Chunked, Options
from enginebay.swap import SwapSpace


def swapping(how="swap", allocator=Paged, depth=1, limits=None, **bounds):
    """A harness whose policy preempts in one way."""
    return Harness(
        lambda given: Chunked(Options(preemption=how), given),
        limits or limits_of(**{"num_swap_blocks": 64, **bounds}),
        make_allocator=allocator,
        depth=depth,
    )


def preemptions(harness):
    """How each preemption of the run was done, by the timelines."""
    timeline = harness.intake.timeline
    events = [event for name in harness.answers.of for event in timeline.of(name)]
    return [event for event in events if event["what"] == "preempted"]


def test_slots_hold_what_was_saved_until_it_is_loaded():
    """A block a slot; what is found cached meanwhile is not loaded."""
    space = SwapSpace(4, block_size=4)
    assert space.has_room(16)
    assert not space.has_room(17)
    assert space.save(1, [7, 8, 9], 10) == [
        BlockOp(kind="save", source=block, target=slot) for slot, block in enumerate((7, 8, 9))
    ]
    assert (space.num_saved(1), space.num_used) == (10, 3)
    assert not space.has_room(5)
    assert space.load(1, [5, 6, 2], 4) == [
        BlockOp(kind="load", source=1, target=6),
        BlockOp(kind="load", source=2, target=2),
    ]
    assert (space.num_saved(1), space.num_used) == (0, 0)
    space.check_integrity()


def test_integrity_sees_a_lost_slot():
    """Slots are free or held."""
    space = SwapSpace(2, block_size=4)
    space.save(1, [0], 3)
    space._saved.clear()
    with pytest.raises(IntegrityError, match="0 slots are held and 1 free, of 2"):
        space.check_integrity()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("allocator", [Paged, Caching])
@pytest.mark.parametrize("how", ["swap", "recompute", "cheapest"])
def test_a_tiny_pool_serves_everybody(how, allocator, depth):
    """32 requests on 16 blocks: preempted again and again, all end with the right tokens."""
    harness = swapping(how, allocator, depth, num_blocks=16, max_model_len=60)
    for number in range(32):
        harness.submit(request_of(f"r{number}", num_prompt=6 + number % 5, max_tokens=30))
    harness.finish()
    require_all_well(harness, "core/swap")
    done = {event["how"] for event in preemptions(harness)}
    assert done == ({how} if how != "cheapest" else done)
    assert done
    blocks = harness.engine.blocks
    assert blocks.swap.num_used == 0
    blocks.swap.check_integrity()


def test_swapped_positions_are_not_computed_again():
    """With swap nothing is recomputed; without, every lost position is."""
    lost = {}
    for how in ("swap", "recompute"):
        records = []
        harness = swapping(how, num_blocks=16, max_model_len=60)
        harness.engine.watch.observers = [("list", Listed(records))]
        for number in range(8):
            harness.submit(request_of(f"r{number}", num_prompt=6, max_tokens=40))
        harness.finish()
        lost[how] = sum(record.num_recomputed_tokens for record in records)
        moved = sum(record.num_saved_blocks for record in records)
        assert moved == sum(record.num_loaded_blocks for record in records)
        assert (moved > 0) == (how == "swap")
        dropped = sum(event["num_tokens"] for event in preemptions(harness))
        assert lost[how] == (dropped if how == "recompute" else 0)
    assert lost["recompute"] > 0


class Listed:
    """An observer that keeps step records."""

    def __init__(self, records):
        self.on_step = records.append

    def on_request(self, record):
        """Nothing."""

    def on_refusal(self, refusal):
        """Nothing."""


def test_full_host_memory_means_recomputing():
    """A victim that has no room there is dropped, and says so."""
    harness = swapping(num_blocks=16, max_model_len=60, num_swap_blocks=5)
    for number in range(12):
        harness.submit(request_of(f"r{number}", num_prompt=6, max_tokens=40))
    harness.finish()
    require_all_well(harness, "core/swap")
    assert {event["how"] for event in preemptions(harness)} == {"swap", "recompute"}


def test_who_leaves_while_swapped_out_gives_its_slots_back():
    """Cancelled in host memory: slots and seat are free, and saved over later."""
    harness = swapping(num_blocks=16, max_model_len=60)
    for number in range(8):
        harness.submit(request_of(f"r{number}", num_prompt=6, max_tokens=40))
    blocks = harness.engine.blocks
    while not blocks.swap.num_used:
        harness.turn()
    for sequence in list(harness.roster.sequences.values()):
        if sequence.num_saved:
            harness.cancel(sequence.request_id)
    harness.turn()
    assert blocks.swap.num_used == 0
    harness.finish()
    require_all_well(harness, "core/swap")


@pytest.mark.parametrize("seed", range(6))
def test_random_worlds_are_survived(seed):
    """Random limits, arrivals and cancels over a caching allocator, with host memory."""
    world = random_world(seed)
    harness = swapping("cheapest", Caching, limits=world.limits)
    harness.play(world.happenings)
    require_all_well(harness, "core/swap")


def test_why_of_whom_by_whom_and_how():
    """Each preemption is in the timeline of its victim, with all that was lost."""
    harness = swapping(num_blocks=16, max_model_len=60)
    for number in range(8):
        harness.submit(request_of(f"r{number}", num_prompt=6, max_tokens=40))
    harness.finish()
    event = preemptions(harness)[0]
    assert (event["reason"], event["how"], event["num_tokens"] > 0) == ("blocks", "swap", True)
    assert event["by"] in harness.answers.of


class Forking:
    """Takes its first choice's blocks before the second can share them, swaps the second
    out in the middle of its prompt, and brings it back once there is a prompt to share."""

    def __init__(self):
        self.waiting = {}
        self.step = 0

    def add(self, sequence):
        self.waiting[sequence.index] = sequence

    def remove(self, sequence_id):
        self.waiting = {i: s for i, s in self.waiting.items() if s.id != sequence_id}

    def num_waiting(self):
        return len(self.waiting)

    def check_integrity(self):
        """Nothing can disagree."""

    def plan(self, build):
        self.step += 1
        running = {sequence.index: sequence for sequence in build.running}
        if self.step == 2:
            build.preempt(running.pop(0), "recompute")
        elif self.step == 4:
            build.preempt(running.pop(1), "swap")
        begin = {1: 0, 2: 1, 3: 0, 5: 1}.get(self.step)
        if begin is not None:
            build.start(self.waiting.pop(begin), 5 if self.step == 2 else None)
        for sequence in running.values() if self.step > 3 else ():
            build.run(sequence)


def test_a_swapped_choice_does_not_load_over_what_it_shares():
    """Saved: 5 of 10 positions; shared: 9, in the same block, which none may mix up."""
    limits = limits_of(num_blocks=8, block_size=16, num_swap_blocks=8)
    harness = Harness(lambda given: Forking(), limits)
    harness.submit(request_of("r", num_prompt=10, max_tokens=4, n=2))
    harness.finish()
    assert [event["num_tokens"] for event in preemptions(harness)] == [10, 5]
    require_all_well(harness, "core/swap")
