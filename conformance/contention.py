"""A small engine under pressure: more requests than seats, blocks, slots and tokens.

    play_contention(Harness(make_scheduler, CONTENDED))

Everything that could go wrong with what sequences hold is looked at after every turn.
"""

from typing import Final

from enginebay.errors import IntegrityError

from .check import Broken, require
from .harness import Harness
from .traffic import Arrival, Happening, Leaving, request_of
from .worlds import limits_of, require_all_well

CONTENDED: Final = limits_of(
    max_step_tokens=16,
    max_sequences=4,
    num_blocks=16,
    max_model_len=60,
    num_swap_blocks=12,
)


def play_contention(harness: Harness) -> None:
    """Play it to its end.

    :raises Broken: ``plan/…`` for a plan that is not safe, ``core/integrity`` for wrong
        counts of blocks or slots, ``core/conservation`` for blocks held by nobody, and
        ``core/comes-back`` for what is not as it was when all have ended
    """
    happenings: list[Happening] = []
    for number in range(14):
        request = request_of(
            f"r{number}",
            num_prompt=5 + 3 * (number % 5),
            max_tokens=12 + 4 * (number % 4),
            n=2 if number % 6 == 5 else 1,
        )
        happenings.append(Arrival(number * 0.008, request))
        if number % 5 == 3:
            happenings.append(Leaving(number * 0.008 + 0.2, request.id))
    harness.play(happenings, each_turn=lambda: require_conserved(harness), max_turns=3000)
    require_all_well(harness, "core/comes-back")
    used = harness.engine.blocks.swap.num_used
    require(used == 0, "core/comes-back", f"{used} host slots are still held")


def require_conserved(harness: Harness) -> None:
    """Every block is free or held by a sequence that has a seat.

    For allocators whose sequences hold no more than they asked for.
    """
    try:
        harness.allocator.check_integrity()
        harness.engine.blocks.swap.check_integrity()
    except IntegrityError as error:
        raise Broken("core/integrity", str(error)) from error
    held = {block for sequence in harness.roster.seats.values() for block in sequence.table}
    used = harness.limits.num_blocks - harness.allocator.num_free
    told = f"{used} blocks are used, the seated sequences hold {len(held)}"
    require(used == len(held), "core/conservation", told)
