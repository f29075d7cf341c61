"""Stage ``tests``: the project's own tests for GPUs."""

import re
import subprocess
import sys
from typing import Any

from .checkout import ROOT
from .stage import Report

DRY = "one short or declines or powers"
"""A few quick ones for the rehearsal."""


def run(report: Report, *, dry: bool, model: str) -> None:
    """pytest with the lane of this machine."""
    report.part("pytest", lambda: _pytest(dry))


def _pytest(dry: bool) -> tuple[dict[str, Any], str]:
    lane = ["-m", "interpret or not (aot or gpu)", "-k", DRY] if dry else ["-m", "gpu"]
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-rf", "--tb=short", *lane]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout[-6000:], done.stderr[-2000:])
    counts = {
        word: int(number)
        for number, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", done.stdout)
    }
    if done.returncode or not counts.get("passed"):
        failures = re.findall(r"^FAILED (.*)$", done.stdout, flags=re.M)
        told = "; ".join(failures[:20]) or done.stdout[-300:] + done.stderr[-300:]
        raise RuntimeError(f"{counts}: {told}")
    return counts, ", ".join(f"{number} {word}" for word, number in counts.items())
