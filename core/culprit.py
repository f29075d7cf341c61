"""Culprit: whose code an error came from, for those who read no traceback."""

from __future__ import annotations

from typing import Final

_CORE: Final = (__package__ or "").partition(".")[0]
_OTHERS: Final = tuple(f"{_CORE}.{root}." for root in ("plugins", "conformance", "simulation"))


def told(error: BaseException) -> str:
    """The error in a line, with the module that the core had called last, if any."""
    module = culprit(error)
    text = f"{type(error).__name__}: {error}"
    return text if module is None else f"{text} (in {module})"


def culprit(error: BaseException) -> str | None:
    """The module that the core had called last when it was raised; ``None``: the core did
    it by itself."""
    found, inside, trace = None, False, error.__traceback__
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        if name.startswith(f"{_CORE}.") and not name.startswith(_OTHERS):
            inside = True
        elif inside:
            found, inside = name, False
        trace = trace.tb_next
    return found
