"""A check: a stable id, a plain function, and what it needs to apply at all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Skip(Exception):
    """A check does not apply to what it was given; the message says why."""


class Broken(AssertionError):
    """A clause of a contract does not hold. ``clause`` is the id of the check."""

    def __init__(self, clause: str, message: str) -> None:
        super().__init__(f"{clause}: {message}")
        self.clause = clause


@dataclass(frozen=True)
class Check:
    """One clause of a contract, as a function that raises when it is broken."""

    id: str
    """``family/clause``: stable, so that reports of two versions can be compared."""
    call: Callable[..., Any]
    """Takes the family's subject (a factory, mostly); raises ``AssertionError``. May
    return a text that says what was measured."""

    @property
    def family(self) -> str:
        """The family whose contract it judges."""
        return self.id.partition("/")[0]

    @property
    def says(self) -> str:
        """The clause in one sentence: the function's first line of documentation."""
        return (self.call.__doc__ or "").strip().partition("\n")[0]


class CheckList(list[Check]):
    """The checks of one family, in the order in which they were written."""

    def add(self, check_id: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator that enters a function under a stable id."""

        def enter(call: Callable[..., Any]) -> Callable[..., Any]:
            self.append(Check(check_id, call))
            return call

        return enter


def require(holds: Any, clause: str, message: str) -> None:
    """:raises Broken: when ``holds`` is false; names the clause"""
    if not holds:
        raise Broken(clause, message)


def failures(checks: list[Check], subject: object) -> dict[str, str]:
    """Run checks on one subject: id -> message of each that fails. Mutants are judged so."""
    found: dict[str, str] = {}
    for check in checks:
        try:
            check.call(subject)
        except Skip:
            continue
        except Exception as error:  # noqa: BLE001  a stranger's code: a crash is a failure
            found[check.id] = f"{type(error).__name__}: {error}"
    return found
