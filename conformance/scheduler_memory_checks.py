"""What every scheduler must do where memory is swapped, cached or awaited.

Each check takes ``make(limits)``, as those of ``scheduler_checks``.
"""

import random
from collections.abc import Callable
from typing import Final

import msgspec

from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import Scheduler

from .check import CheckList, require
from .harness import Harness
from .idle_watch import IdleWatch
from .mutants.caching import Caching
from .mutants.expecting import Delaying, Expecting
from .traffic import VOCAB_SIZE, Arrival, Happening, Leaving, request_of
from .worlds import limits_of, random_world, require_all_well

MakeScheduler = Callable[[Limits], Scheduler]
SCHEDULER_MEMORY_CHECKS: Final = CheckList()
SEEDS: Final = (0, 1, 4)


@SCHEDULER_MEMORY_CHECKS.add("scheduler/swap")
def swapped_sequences_come_back(make: MakeScheduler) -> None:
    """With swap space, small or large, everybody goes on and every slot comes back."""
    for seed in SEEDS:
        for slots, depth in ((6, 1), (64, 2)):
            world = random_world(seed)
            limits = msgspec.structs.replace(world.limits, num_blocks=16, num_swap_blocks=slots)
            _require_swap_well(Harness(make, limits, depth=depth), world.happenings)
    limits = limits_of(num_blocks=16, max_model_len=60, num_swap_blocks=64)
    answers = [
        Arrival(0.0, request_of(f"r{number}", num_prompt=6, max_tokens=40)) for number in range(8)
    ]
    _require_swap_well(Harness(make, limits), answers)


@SCHEDULER_MEMORY_CHECKS.add("scheduler/cached-prefixes")
def prefixes_are_shared(make: MakeScheduler) -> None:
    """Over an allocator that finds prefixes again, or says which are coming, everybody ends
    rightly."""
    for seed in SEEDS:
        for kind in (Caching, Expecting):
            limits, happenings = _families(seed)
            harness = Harness(make, limits, make_allocator=kind)
            harness.play(happenings)
            require_all_well(harness, "scheduler/cached-prefixes")


@SCHEDULER_MEMORY_CHECKS.add("scheduler/prefix-wait")
def strangers_need_not_wait_for_a_prefix(make: MakeScheduler) -> None:
    """A few that wait for a prefix keep nobody behind them waiting, though it is long in
    coming; all came together, so a policy may well put them into one batch."""
    clause = "scheduler/prefix-wait"
    limits = limits_of(num_blocks=200, max_step_tokens=32)
    harness = Harness(make, limits, make_allocator=Delaying)
    prefix = [1 + number % 90 for number in range(20)]
    for number in range(4):
        harness.submit(
            request_of(
                f"shares-{number}",
                num_prompt=0,
                max_tokens=4 if number else 60,
                prompt=[*prefix, 50 + number],
            )
        )
    harness.submit(request_of("stranger", num_prompt=9, max_tokens=4))
    harness.finish()
    require_all_well(harness, clause)
    begun = harness.answers.of["stranger"].first_token_at or 0.0
    sharing = [harness.answers.of[f"shares-{number}"].first_token_at for number in range(4)]
    waited = sorted(moment or 0.0 for moment in sharing)[1]  # the first computes for the others
    told = (
        f"a stranger began at {begun:.3f} s, not before those who waited for a prefix that it "
        f"does not share, at {waited:.3f} s; after a denial for `prefix`, try the next"
    )
    require(begun < waited, clause, told)


def _require_swap_well(harness: Harness, happenings: tuple[Happening, ...] | list[Arrival]) -> None:
    clause, swap = "scheduler/swap", harness.engine.blocks.swap
    idle = IdleWatch(harness)

    def look() -> None:
        idle.look()
        swap.check_integrity()

    harness.play(happenings, each_turn=look)
    require_all_well(harness, clause)
    require(swap.num_used == 0, clause, f"{swap.num_used} host slots are still held")


def _families(seed: int) -> tuple[Limits, list[Happening]]:
    """Requests whose prompts begin alike, in bursts, some of which leave."""
    noise = random.Random(seed)
    limits = limits_of(
        max_step_tokens=noise.choice((6, 24)),
        num_blocks=noise.choice((20, 40)),
        max_model_len=64,
    )
    prefixes = [[noise.randrange(1, VOCAB_SIZE) for _ in range(24)] for _ in range(2)]
    time = 0.0
    happenings: list[Happening] = []
    for number in range(20):
        time += noise.choice((0.0, 0.0, 0.03))
        own = [noise.randrange(1, VOCAB_SIZE) for _ in range(noise.randint(1, 6))]
        request = request_of(
            f"{seed}-{number}",
            num_prompt=0,
            max_tokens=noise.randint(1, 16),
            n=noise.choice((1, 1, 2)),
            tenant=noise.choice(("a", "a", "b")),
            prompt=[*noise.choice(prefixes)[: noise.randint(4, 24)], *own],
        )
        happenings.append(Arrival(time, request))
        if noise.random() < 0.2:
            happenings.append(Leaving(time + noise.expovariate(1 / 0.05), request.id))
    return limits, happenings
