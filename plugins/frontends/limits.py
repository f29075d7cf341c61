"""What a template may use up: steps, processor time, and the size of what it builds.

The sandbox keeps a template from reaching Python; these bounds keep it from occupying
the process. Every loop iteration and macro call is a step, and each operation that can
build something large from small operands is looked at before it runs.
"""

import re
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import wraps
from string import Formatter
from typing import Any, Final

from jinja2.exceptions import TemplateRuntimeError

MAX_STEPS: Final = 1_000_000
MAX_SIZE: Final = 16_000_000
"""Characters of a string, items of a list."""
MAX_TOTAL: Final = 400_000_000
"""Of all that a rendering builds."""
MAX_NUMBER: Final = 1_000
"""Widths, counts and precisions given to filters and methods."""
MAX_BITS: Final = 4_096
"""Of an integer result."""

_STEPS_A_LOOK: Final = 16
_WIDE: Final = re.compile(r"%(\([^)]*\))?[-+ #0]*(\d{4}|\*|\d*\.(\d{4}|\*))")
_WIDE_FIELD: Final = re.compile(r"\d{4}|\{")
"""Formats with a width of four digits, or one that is itself filled in."""
_WIDENING: Final = ("center", "expandtabs", "ljust", "rjust", "to_bytes", "zfill")
_RISKY: Final = (
    "batch",
    "center",
    "indent",
    "pprint",
    "round",
    "slice",
    "truncate",
    "wordwrap",
)


class TemplateTooCostly(TemplateRuntimeError):
    """A template went over one of the bounds."""


class Budget:
    """What is left to one rendering. Processor time, so a busy machine costs nothing."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.thread_time() + seconds
        self._steps = 0
        self._built = 0

    def step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TemplateTooCostly(f"it takes more than {MAX_STEPS} steps")
        if self._steps % _STEPS_A_LOOK == 0 and time.thread_time() > self._deadline:
            raise TemplateTooCostly("it takes too long")

    def build(self, size: int) -> None:
        """Before something of ``size`` characters or items is built."""
        self._built += size
        if size > MAX_SIZE or self._built > MAX_TOTAL:
            raise TemplateTooCostly(f"it builds more than {MAX_SIZE} characters or items")


BUDGET: Final[ContextVar[Budget]] = ContextVar("BUDGET")


def joined(parts: Iterable[str]) -> str:
    """``"".join`` that looks at the size first."""
    kept = list(parts)
    BUDGET.get().build(sum(map(len, kept)))
    return "".join(kept)


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Before ``left operator right``."""
    if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
        BUDGET.get().build(len(left) + len(right))
    elif operator == "%" and isinstance(left, str):
        _check_format(left)
    elif operator == "*":
        _check_product(left, right)
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * abs(right))


def check_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before a method of a string or number is called from a template."""
    # The sandbox puts a function of its own around str.format.
    function = getattr(function, "__wrapped__", function)
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if isinstance(owner, (str, int)) and name in _WIDENING:
        _check_numbers((*args, *kwargs.values()))
    elif isinstance(owner, str):
        if name in ("format", "format_map"):
            _check_fields(owner)
        elif name == "replace" and len(args) >= 2:
            _check_replace(owner, args[0], args[1])
        elif name == "join" and args:
            _check_join(owner, args[0])


def bounded_filters(filters: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The filters that can build something large, each with its bound in front."""
    bounded = {name: _with_numbers(filters[name]) for name in _RISKY}
    bounded["replace"] = _guarded(filters["replace"], _check_replace, 3)
    bounded["format"] = _guarded(filters["format"], _check_format, 1)
    return bounded


def _with_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        _check_numbers((*args[_first(function) + 1 :], *kwargs.values()))
        return function(*args, **kwargs)

    return call


def _guarded(
    function: Callable[..., Any], check: Callable[..., None], num_args: int
) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        first = _first(function)
        check(*args[first : first + num_args])
        return function(*args, **kwargs)

    return call


def _first(function: Callable[..., Any]) -> int:
    # Jinja hands some filters their context or environment in front of the value.
    return 1 if hasattr(function, "jinja_pass_arg") else 0


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise TemplateTooCostly(f"it computes an integer of more than {MAX_BITS} bits")


def _check_numbers(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise TemplateTooCostly(f"it gives a width or count of more than {MAX_NUMBER}")


def _check_format(text: Any) -> None:
    if _WIDE.search(str(text)):
        raise TemplateTooCostly("it formats something wider than 999 characters")


def _check_fields(text: str) -> None:
    if any(_WIDE_FIELD.search(field[2] or "") for field in Formatter().parse(text)):
        raise TemplateTooCostly("it formats something wider than 999 characters")


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    elif isinstance(left, int) and hasattr(right, "__len__"):
        BUDGET.get().build(left * len(right))
    elif isinstance(right, int) and hasattr(left, "__len__"):
        BUDGET.get().build(len(left) * right)


def _check_replace(text: Any, old: Any = "", new: Any = "", *_: Any) -> None:
    text, old, new = str(text), str(old), str(new)
    BUDGET.get().build(len(text) + text.count(old) * len(new))


def _check_join(separator: str, items: Any) -> None:
    if isinstance(items, (list, tuple)):
        sizes = sum(len(item) for item in items if isinstance(item, str))
        BUDGET.get().build(sizes + len(separator) * len(items))
