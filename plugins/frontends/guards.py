"""Checks in front of what could build something large from small operands."""

import re
from collections.abc import Callable, Iterable
from functools import wraps
from string import Formatter
from typing import Any, Final

from .limits import TemplateTooCostly, build, printable

MAX_NUMBER: Final = 1_000
"""Widths, counts and precisions given to filters and methods."""
MAX_BITS: Final = 4_096
"""Of an integer result."""

_WIDE: Final = re.compile(r"%(\([^)]*\))?[-+ #0]*(\d{4}|\*|\d*\.(\d{4}|\*))")
_WIDE_FIELD: Final = re.compile(r"\d{4}|\{")
"""Formats with a width of four digits, or one that is itself filled in."""
_WIDENING_METHODS: Final = ("center", "expandtabs", "ljust", "rjust", "to_bytes", "zfill")
_WIDENING_FILTERS: Final = (
    "batch",
    "center",
    "indent",
    "pprint",
    "round",
    "slice",
    "truncate",
    "wordwrap",
)
_WRITING_FILTERS: Final = (
    "capitalize",
    "e",
    "escape",
    "forceescape",
    "lower",
    "safe",
    "string",
    "striptags",
    "title",
    "trim",
    "upper",
    "urlencode",
    "wordcount",
)

Filter = Callable[..., Any]


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Before ``left operator right``."""
    if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
        build(len(left) + len(right))
    elif operator == "%" and isinstance(left, str):
        _check_format(left, right)
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
    if isinstance(owner, (str, int)) and name in _WIDENING_METHODS:
        _check_numbers((*args, *kwargs.values()))
    elif isinstance(owner, str):
        if name in ("format", "format_map"):
            _check_fields(owner, (*args, *kwargs.values()))
        elif name == "replace" and len(args) >= 2:
            _check_replace(owner, args[0], args[1])
        elif name == "join" and args:
            _check_join(args[0], owner)


def guarded_filters(filters: dict[str, Filter]) -> dict[str, Filter]:
    """The filters that can build something large, each with its check in front."""
    checks: dict[str, Filter] = dict.fromkeys(_WRITING_FILTERS, printable)
    checks |= dict.fromkeys(_WIDENING_FILTERS, _check_widening)
    checks |= {"replace": _check_replace, "format": _check_format, "join": _check_join}
    return {name: _guarded(filters[name], check) for name, check in checks.items()}


def _guarded(function: Filter, check: Filter) -> Filter:
    # Jinja hands some filters their context or environment in front of the value.
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check(*args[first:], **kwargs)
        return function(*args, **kwargs)

    return call


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise TemplateTooCostly(f"it computes an integer of more than {MAX_BITS} bits")


def _check_numbers(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise TemplateTooCostly(f"it gives a width or count of more than {MAX_NUMBER}")


def _check_widening(value: Any, *args: Any, **kwargs: Any) -> None:
    printable(value)
    _check_numbers((*args, *kwargs.values()))


def _check_format(text: Any, *values: Any, **more: Any) -> None:
    printable([*values, *more.values()])
    if _WIDE.search(str(printable(text))):
        raise TemplateTooCostly("it formats something wider than 999 characters")


def _check_fields(text: str, values: tuple[Any, ...]) -> None:
    printable(values)
    if any(_WIDE_FIELD.search(field[2] or "") for field in Formatter().parse(text)):
        raise TemplateTooCostly("it formats something wider than 999 characters")


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    elif isinstance(left, int) and hasattr(right, "__len__"):
        build(left * len(right))
    elif isinstance(right, int) and hasattr(left, "__len__"):
        build(len(left) * right)


def _check_replace(text: Any, old: Any = "", new: Any = "", *_: Any, **__: Any) -> None:
    text, old, new = (str(printable(each)) for each in (text, old, new))
    build(len(text) + text.count(old) * len(new))


def _check_join(items: Any, d: Any = "", attribute: Any = None) -> None:
    if isinstance(items, (list, tuple)):
        printable(items)
        build(len(str(d)) * len(items))
