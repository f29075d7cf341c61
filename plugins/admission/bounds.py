"""What members of an admission chain require of their options and of their place."""

import math
from collections.abc import Sequence
from typing import Any

from enginebay.errors import StackError
from enginebay.hookspecs.admission import AdmissionContext


def require_least(context: AdmissionContext, options: Any, least: float, *fields: str) -> None:
    """:raises StackError: a field is below ``least``, or no number at all"""
    for field in fields:
        value = getattr(options, field)
        if not value >= least:  # NaN is none either
            msg = f"{context.name}: {field} is {value}; it must be {least:g} or more"
            raise StackError(msg)


def require_order(context: AdmissionContext, options: Any, fields: Sequence[str]) -> None:
    """:raises StackError: the second of two fields is below the first, or not finite"""
    low, high = (getattr(options, field) for field in fields)
    if not low <= high < math.inf:
        limits = f"it must be finite and not below {fields[0]}, {low}"
        msg = f"{context.name}: {fields[1]} is {high}; {limits}"
        raise StackError(msg)


def require_budget(context: AdmissionContext, wants: str) -> None:
    """:raises StackError: it stands at the door, where nothing is tokenized yet"""
    if context.chain != "budget":
        msg = f"{context.name}: {wants} needs the prompt's length: list it under budget, not door"
        raise StackError(msg)
