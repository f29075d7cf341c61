"""How a frontend says what is wrong with a request: which field, what it holds, the fix."""

import reprlib
from typing import Any, NoReturn

from enginebay.errors import InvalidRequest


def refuse(param: str, complaint: str) -> NoReturn:
    """:raises InvalidRequest: always"""
    raise InvalidRequest(f"{param} {complaint}", param)


def shown(value: Any) -> str:
    """A value as part of a message: short, whatever it is."""
    if value is None:
        return "missing"
    if isinstance(value, int) and value.bit_length() > 64:
        # Python refuses to write out thousands of digits, and nobody would read them.
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)
