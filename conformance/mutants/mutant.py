"""A mutant: a plugin with one planted fault, and the check that must find it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """One planted fault."""

    fault: str
    """What it does wrong, in a few words."""
    make: Callable[..., Any]
    """Takes what the family's checks give a factory."""
    caught_by: str
    """Id of the check that must fail."""
