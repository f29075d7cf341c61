"""What a request's own fields may be, besides its prompt and its sampling.

Checked by type first: a struct built in Python holds what it was given, and a policy that
compares a text with a number ends the engine for everybody.
"""

import math
from typing import Any, Final

from .errors import InvalidRequest
from .flow import Request
from .sampling_limits import check_integer

PRIORITIES: Final = (-(2**63), 2**63 - 1)


def check_envelope(request: Request) -> None:
    """Hold id, tenant, priority, deadline, window, arrival and attempt to their limits.

    :raises InvalidRequest: names the field, what it held, and what it may hold
    """
    _check_text("id", request.id)
    _check_text("tenant", request.tenant)
    if request.adapter is not None:
        _check_text("adapter", request.adapter)
    check_integer("priority", request.priority, *PRIORITIES)
    check_integer("window", request.window, 0)
    check_integer("attempt", request.attempt, 0)
    if request.deadline is not None and not _number("deadline", request.deadline) > 0:
        raise InvalidRequest(f"deadline is {request.deadline}; it must be above 0", "deadline")
    if request.arrival is not None and not math.isfinite(_number("arrival", request.arrival)):
        raise InvalidRequest(f"arrival is {request.arrival}; it must be finite", "arrival")


def _check_text(name: str, value: Any) -> None:
    try:
        value.encode()
    except (AttributeError, UnicodeEncodeError):
        message = f"{name} is no text that can be written as UTF-8"
        raise InvalidRequest(message, name) from None


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} is a {type(value).__name__}; it must be a number", name)
    try:
        return float(value)
    except OverflowError:
        raise InvalidRequest(f"{name} is too large for a number of seconds", name) from None
