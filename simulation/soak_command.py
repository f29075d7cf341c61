"""What ``enginebay simulate --soak`` and ``--replay`` do."""

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from enginebay.errors import EnginebayError

from .parts import shipped
from .soak import Soaked, found, loaded, soak_worlds, stored, told

EVERY: Final = 5.0
"""Seconds between two lines of progress."""


def soak(
    steps: int, seed: int, keep: str, schedulers: Sequence[str], allocators: Sequence[str]
) -> int:
    """Soak, and tell what was met. :return: 1 when a rule was broken

    :param keep: a file for the shrunk world that broke one
    :param schedulers: names of those to try; empty: all that ship
    """
    parts = shipped()
    parts.schedulers = list(schedulers) or parts.schedulers
    parts.allocators = list(allocators) or parts.allocators
    began = last = time.monotonic()

    def progress(soaked: Soaked) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EVERY:
            last = now
            pace = soaked.steps / (now - began)
            line = f"{soaked.steps} steps in {soaked.worlds} worlds, {pace:.0f} a second"
            print(line, file=sys.stderr, flush=True)

    print(f"seeds from {seed} on, {steps} steps", flush=True)
    soaked = soak_worlds(parts, steps=steps, seed=seed, told=progress)
    if soaked.found is None:
        print(summary(soaked, time.monotonic() - began))
        return 0
    Path(keep).write_bytes(stored(soaked.found.shrunk))
    print(told(soaked.found, keep, chosen(schedulers, allocators)))
    return 1


def chosen(schedulers: Sequence[str], allocators: Sequence[str]) -> str:
    """The options that name these policies, each with a space before it."""
    given = (("--schedulers", schedulers), ("--allocators", allocators))
    return "".join(f" {name} {shlex.quote(','.join(use))}" for name, use in given if use)


def summary(soaked: Soaked, seconds: float) -> str:
    """What was met, and that every rule held."""
    last = soaked.first_seed + soaked.worlds - 1
    worlds = f"{soaked.worlds} worlds (seeds {soaked.first_seed} to {last})"
    lines = [f"{soaked.steps} steps in {worlds} in {seconds:.0f} s: no rule was broken"]
    lines += [f"  {name}: {count}" for name, count in sorted(soaked.counts.items())]
    return "\n".join(lines)


def replay(path: str) -> int:
    """Run one stored world. :return: 1 when it breaks a rule"""
    try:
        world = loaded(Path(path).read_bytes(), path)
    except OSError as error:
        raise EnginebayError(f"{path!r} can't be read: {error}") from error
    broken = found(world, shipped())
    if broken is None:
        print(f"{path}: every rule holds in this world of {len(world.visits)} requests")
        return 0
    print(told(broken, path, None))
    return 1
