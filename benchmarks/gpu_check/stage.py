"""One stage in its own process: ``python -m benchmarks.gpu_check.stage NAME``.

After each part a line of JSON says what was found so far: ``lines`` for people, and figures.
A part's failure is caught, so that it does not hide the others; and a stage that is ended for
its time has told what it knew.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .stages import STAGES
from .strict import interpret


class Report:
    """What a stage found."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.figures: dict[str, Any] = {}
        self.failed: list[str] = []

    def add(self, name: str, facts: dict[str, Any], text: str) -> None:
        """A part that worked."""
        self.figures[name] = facts
        self._tell(f"{name}: {text}")

    def fail(self, name: str, why: str) -> None:
        """A part that did not."""
        self.failed.append(name)
        self._tell(f"{name}: FAILED: {why}")

    def _tell(self, line: str) -> None:
        self.lines.append(line)
        told = {"lines": self.lines, "figures": self.figures, "failed": self.failed}
        print(json.dumps(told), flush=True)

    def part(self, name: str, work: Callable[[], tuple[dict[str, Any], str]]) -> None:
        """Run a part; its failure is told and stays its own."""
        try:
            facts, text = work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the others still count
            traceback.print_exc()
            self.fail(name, f"{type(error).__name__}: {str(error)[:300]}")
        else:
            self.add(name, facts, text)


def main() -> int:
    """Run the stage that is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=[stage.name for stage in STAGES])
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--model", default="")
    options = parser.parse_args()
    if options.dry and options.name not in ("machine", "tests"):
        interpret()
    module = import_module(f"benchmarks.gpu_check.{options.name}")
    report = Report()
    module.run(report, dry=options.dry, model=options.model)
    return int(bool(report.failed or not report.lines))


if __name__ == "__main__":
    sys.exit(main())
