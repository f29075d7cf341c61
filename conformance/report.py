"""The report of a run: one line a check, as a table or as JSON."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Result:
    """What one check found."""

    check: str
    """Its stable id."""
    subject: str
    """The plugin judged, with its distribution and version, or the stack."""
    outcome: Outcome
    seconds: float
    message: str = ""
    """Why it failed or was skipped; for some that passed, what was measured."""


@dataclass
class Report:
    """Everything a run found, in the order in which it was checked."""

    results: list[Result] = field(default_factory=list)

    @property
    def failed(self) -> list[Result]:
        """Those that did not hold."""
        return [result for result in self.results if result.outcome == "failed"]

    def count(self, outcome: Outcome) -> int:
        """How many ended so."""
        return sum(result.outcome == outcome for result in self.results)

    def summary(self) -> str:
        """One line of counts."""
        counts = [f"{self.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped")]
        return ", ".join(counts)

    def json(self) -> str:
        """For machines."""
        facts: dict[str, Any] = {
            "passed": self.count("passed"),
            "failed": self.count("failed"),
            "skipped": self.count("skipped"),
            "results": [asdict(result) for result in self.results],
        }
        return json.dumps(facts, indent=2)


def line(result: Result) -> str:
    """One result for people."""
    told = f"{result.outcome:8}{result.check:48} {result.seconds:6.1f} s"
    for part in result.message.splitlines():
        told += f"\n          {part}"
    return told
