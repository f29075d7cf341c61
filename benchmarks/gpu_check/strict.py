"""For the rehearsal: Triton's interpreter as the tests correct it."""

import sys

from .checkout import ROOT


def interpret() -> None:
    """Load the corrections before any kernel; see ``tests/gpu/interpreter.py``."""
    sys.path.append(str(ROOT / "tests" / "gpu"))
    __import__("interpreter")
