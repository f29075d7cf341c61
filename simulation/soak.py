"""The soak: random worlds, one after another, until so many steps were taken."""

import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from enginebay.conformance.check import Broken
from enginebay.errors import EnginebayError, IntegrityError

from .parts import Parts
from .shrink import failure, shrink
from .soak_run import run_world
from .soak_world import World, draw

SHOWN: Final = 5
"""Requests of the shortest trace that are printed; its file has all of them."""
HELD: Final = "soak/repeatable: the rule held when the same world was run again"


@dataclass
class Found:
    """A broken rule, and the smallest world in which it was found again."""

    seed: int
    clause: str
    message: str
    world: World
    shrunk: World
    shrunk_message: str


@dataclass
class Soaked:
    """What a soak met."""

    first_seed: int
    worlds: int = 0
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    found: Found | None = None


def soak_worlds(
    parts: Parts,
    *,
    steps: int,
    seed: int = 0,
    told: Callable[[Soaked], None] = lambda soaked: None,
) -> Soaked:
    """Run worlds of seeds ``seed``, ``seed + 1``, ... up to the first broken rule.

    :param steps: plans that are executed, in all worlds together
    :param told: called after each world
    """
    soaked = Soaked(seed)
    while soaked.steps < steps:
        world = draw(seed + soaked.worlds, parts)
        try:
            tally = run_world(world, parts)
        except (Broken, IntegrityError) as error:
            once = Found(world.seed, "soak/repeatable", str(error), world, world, HELD)
            soaked.found = found(world, parts) or once
            return soaked
        soaked.worlds += 1
        soaked.steps += tally.steps
        soaked.counts.update(tally.counts)
        soaked.counts[f"scheduler: {world.scheduler}"] += tally.steps
        soaked.counts[f"allocator: {world.allocator}"] += tally.steps
        told(soaked)
    return soaked


def found(world: World, parts: Parts) -> Found | None:
    """Run a world again and shrink it; ``None``: every rule holds in it."""
    first = failure(world, parts)
    if first is None:
        return None
    shrunk = shrink(world, parts, first[0])
    again = failure(shrunk, parts)
    return Found(world.seed, *first, world, shrunk, again[1] if again else first[1])


def told(found: Found, keep: str, drawn_from: str | None = "") -> str:
    """A broken rule for people: the seed, how to see it again, the shortest trace, and last
    the rule that is broken in it.

    :param keep: the file in which the shrunk world was stored
    :param drawn_from: the options that chose the policies, without which a seed draws
        another world; ``None``: the world comes from a file, and no seed is told
    """
    world = found.shrunk
    plain = msgspec.to_builtins(world)
    visits = plain.pop("visits")
    seeded = f"enginebay simulate --soak{drawn_from} --seed {found.seed} --steps 1"
    more = len(visits) - SHOWN
    lines = [
        f"broken in the world of seed {found.seed}: {found.message}",
        *([] if drawn_from is None else [f"the whole world:    {seeded}"]),
        f"the shortest alone: enginebay simulate --replay {shlex.quote(keep)}",
        f"the shortest found has {len(visits)} of {len(found.world.visits)} requests:",
        f"  world   {plain}",
        *(f"  request {visit}" for visit in visits[:SHOWN]),
        *([f"  and {more} more in {keep}"] if more > 0 else []),
        found.shrunk_message,
    ]
    return "\n".join(lines)


def stored(world: World) -> bytes:
    """A world as a line of JSON, which ``loaded`` reads."""
    return msgspec.json.encode(world) + b"\n"


def loaded(data: bytes, where: str) -> World:
    """:raises EnginebayError: it is no world; names ``where``"""
    try:
        return msgspec.json.decode(data, type=World)
    except msgspec.DecodeError as error:
        raise EnginebayError(f"{where}: no stored world: {error}") from error
