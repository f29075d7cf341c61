"""What a template may use up: steps, processor time, and the size of what it builds.

The sandbox keeps a template from reaching Python; a budget keeps it from occupying the
process. Every loop iteration and macro call is a step, and what could become large is
charged before it is built.
"""

import time
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Final, NoReturn

from jinja2.exceptions import TemplateRuntimeError

MAX_STEPS: Final = 1_000_000
MAX_SIZE: Final = 16_000_000
"""Characters of a string, items of a list."""
MAX_TOTAL: Final = 400_000_000
"""Of all that a rendering builds."""

_STEPS_A_LOOK: Final = 16
_ITEM_SIZE: Final = 16
"""Characters that an item of a list counts for besides its own text."""


class TemplateTooCostly(TemplateRuntimeError):
    """A template went over one of the bounds."""


class Budget:
    """What is left to one rendering. Processor time, so a busy machine costs nothing."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.thread_time() + seconds
        self._steps = 0
        self._built = 0
        self.exhausted = False
        """Something went over a bound."""

    def step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            self._refuse(f"it takes more than {MAX_STEPS} steps")
        if self._steps % _STEPS_A_LOOK == 0 and time.thread_time() > self._deadline:
            self._refuse("it takes too long")

    def build(self, size: int) -> None:
        """Before something of ``size`` characters or items is built."""
        self._built += size
        if size > MAX_SIZE or self._built > MAX_TOTAL:
            self._refuse(f"it builds more than {MAX_SIZE} characters or items")

    def _refuse(self, reason: str) -> NoReturn:
        self.exhausted = True
        raise TemplateTooCostly(reason)


BUDGET: Final[ContextVar[Budget]] = ContextVar("BUDGET")


def build(size: int) -> None:
    """Charge the running template."""
    BUDGET.get().build(size)


def joined(parts: Iterable[str]) -> str:
    """``"".join`` that looks at the size first."""
    kept = list(parts)
    build(sum(map(len, kept)))
    return "".join(kept)


def printable(value: Any) -> Any:
    """``value``, once it is certain that writing it out is affordable.

    A list may hold another one many times, so its text can be far larger than itself.
    """
    if isinstance(value, (list, tuple, dict)):
        build(_printed_size(value))
    return value


def _printed_size(value: Any) -> int:
    """About how many characters ``str(value)`` has; counting ends at the bound."""
    size, waiting = 0, [value]
    while waiting and size <= MAX_SIZE:
        item = waiting.pop()
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, dict):
            size += 2 * _ITEM_SIZE * len(item)
            waiting += [*item.keys(), *item.values()] if size <= MAX_SIZE else []
        elif isinstance(item, (list, tuple)):
            size += _ITEM_SIZE * len(item)
            waiting += item if size <= MAX_SIZE else []
    return size
