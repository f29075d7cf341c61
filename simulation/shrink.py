"""Shrinking: the smallest world found in which the same rule is still broken."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from enginebay.conformance.check import Broken
from enginebay.errors import IntegrityError

from .parts import Parts
from .soak_run import run_world
from .soak_world import Visit, World

MAX_RUNS: Final = 300
MAX_LONG_RUNS: Final = 25
"""Of a world with equal visits: it is long, and only fewer of them are tried."""
CALM: Final[dict[str, Any]] = {
    "refusing": 0.0,
    "jostling": 0.0,
    "drafts": False,
    "depth": 1,
    "door": (),
    "budget": (),
    "options": {},
}
"""A world without troubles of its own."""
PLAIN: Final[dict[str, Any]] = {
    "n": 1,
    "leaves": None,
    "deadline": None,
    "window": 0,
    "stem_tokens": 0,
    "priority": 0,
    "tenant": "a",
    "ignore_eos": True,
    "scored": False,
    "time": 0.0,
}
"""A visit that does nothing special."""


def clause_of(world: World, parts: Parts) -> str:
    """Which rule a world breaks; empty: none."""
    told = failure(world, parts)
    return told[0] if told else ""


def failure(world: World, parts: Parts) -> tuple[str, str] | None:
    """The broken rule and the message; ``None``: all is well."""
    try:
        run_world(world, parts)
    except Broken as broken:
        return broken.clause, str(broken)
    except IntegrityError as error:
        return "soak/integrity", f"soak/integrity: {error}"
    return None


def shrink(world: World, parts: Parts, clause: str) -> World:
    """Drop and simplify what happens, as long as ``clause`` is still broken."""
    left = MAX_LONG_RUNS if world.equals else MAX_RUNS

    def fails(candidate: World) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and clause_of(candidate, parts) == clause

    if world.equals:
        return _fewer(world, fails)
    before = None
    while before != world and left > 0:
        before = world
        world = _fewer(world, fails)
        for simpler in (_calmer, _plainer, _shorter):
            world = _as_far_as(world, simpler, fails)
    return world


def _fewer(world: World, fails: Callable[[World], bool]) -> World:
    """Leave out halves of the visits, then quarters, down to single ones."""
    size = max(len(world.visits) // 2, 1)
    while True:
        place = 0
        while place < len(world.visits):
            kept = (*world.visits[:place], *world.visits[place + size :])
            candidate = msgspec.structs.replace(world, visits=kept)
            if kept and fails(candidate):
                world = candidate
            else:
                place += size
        if size == 1:
            return world
        size = max(size // 2, 1)


def _as_far_as(
    world: World, simpler: Callable[[World], Iterator[World]], fails: Callable[[World], bool]
) -> World:
    """Take the first simpler world that still fails, again and again."""
    while True:
        found = next((candidate for candidate in simpler(world) if fails(candidate)), None)
        if found is None:
            return world
        world = found


def _calmer(world: World) -> Iterator[World]:
    for name, value in CALM.items():
        if getattr(world, name) != value:
            yield msgspec.structs.replace(world, **{name: value})


def _plainer(world: World) -> Iterator[World]:
    for place, visit in enumerate(world.visits):
        for name, value in PLAIN.items():
            if getattr(visit, name) != value:
                yield _with(world, place, **{name: value})


def _shorter(world: World) -> Iterator[World]:
    for place, visit in enumerate(world.visits):
        for name in ("num_prompt", "max_tokens"):
            value = getattr(visit, name)
            for less in dict.fromkeys((value // 2, value - 1)):
                if 0 < less < value:
                    yield _with(world, place, **{name: less})


def _with(world: World, place: int, **changes: Any) -> World:
    visits = list(world.visits)
    changed: Visit = msgspec.structs.replace(visits[place], **changes)
    visits[place] = changed
    return msgspec.structs.replace(world, visits=tuple(visits))
