"""What a sampling value may be: the core's own fields, and any declared ``Field``.

Everything here is checked by type first, since a struct built in Python holds what
it was given: ``True`` is not a number, ``"7"`` is not a seed, NaN and infinity are
not values.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from .errors import InvalidRequest
from .flow import SamplingParams
from .hookspecs.sampler import Field

MAX_CHOICES: Final = 128
MAX_LOGPROBS: Final = 20
"""The bound of the OpenAI API; an engine may set its own."""
MAX_STOP_STRINGS: Final = 16
MAX_STOP_CHARACTERS: Final = 1024
MAX_STOP_TOKENS: Final = 1024
SEED_RANGE: Final = (-(2**63), 2**63 - 1)

_FLAGS: Final = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens")
_MODES: Final = ("raw", "processed")


def check_core(
    sampling: SamplingParams,
    vocab_size: int,
    max_logprobs: int = MAX_LOGPROBS,
    max_choices: int = MAX_CHOICES,
) -> None:
    """Hold the typed fields of a request to their limits.

    ``max_tokens`` may be 0: nothing is generated and the prompt is only echoed or
    scored; doors that have no such mode refuse it themselves.

    :param max_logprobs: the most alternatives a request may ask for, a token
    :param max_choices: the largest ``n``
    :raises InvalidRequest: names the field, what it held, and what it may hold
    """
    if sampling.max_tokens is not None:
        check_integer("max_tokens", sampling.max_tokens, 0)
    check_integer("min_tokens", sampling.min_tokens, 0)
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        _refuse("min_tokens", sampling.min_tokens, f"at most max_tokens ({sampling.max_tokens})")
    check_integer("n", sampling.n, 1, max_choices)
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(sampling, name) is not None:
            check_integer(name, getattr(sampling, name), 0, min(max_logprobs, vocab_size))
    if sampling.seed is not None:
        check_integer("seed", sampling.seed, *SEED_RANGE)
    _check_stop(sampling.stop)
    _check_stop_tokens(sampling.stop_token_ids, vocab_size)
    for name in _FLAGS:
        if not isinstance(getattr(sampling, name), bool):
            _refuse(name, getattr(sampling, name), "true or false")
    if sampling.logprobs_mode not in _MODES:
        _refuse("logprobs_mode", sampling.logprobs_mode, "'raw' or 'processed'")


def check_integer(
    name: str, value: Any, minimum: int | None = None, maximum: int | None = None
) -> int:
    """An integer within inclusive bounds; a boolean and a float are none.

    :raises InvalidRequest: it is not; names the field
    """
    wrong = isinstance(value, bool) or not isinstance(value, int)
    wrong = wrong or (minimum is not None and value < minimum)
    if wrong or (maximum is not None and value > maximum):
        _refuse(name, value, "an integer" + _bounds(minimum, maximum))
    return int(value)


def check_value(field: Field, value: Any) -> Any:
    """Hold a value to its field's type and range.

    :return: a float for numbers, else the value itself
    :raises InvalidRequest: it does not fit; names field, value and allowed range
    """
    if field.type == "number":
        return _check_number(field, value)
    if field.type == "integer":
        low, high = (None if edge is None else int(edge) for edge in (field.minimum, field.maximum))
        return check_integer(field.name, value, low, high)
    if field.type == "boolean" and not isinstance(value, bool):
        _refuse(field.name, value, "true or false")
    if field.type == "object" and not isinstance(value, Mapping):
        _refuse(field.name, value, "an object")
    if field.type == "array" and not isinstance(value, list | tuple):
        _refuse(field.name, value, "an array")
    return value


def _check_number(field: Field, value: Any) -> float:
    wanted = "a finite number" + _bounds(field.minimum, field.maximum, field.exclusive_minimum)
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(field.name, value, wanted)
    try:
        number = float(value)
    except OverflowError:
        _refuse(field.name, value, wanted)
    low, high = field.minimum, field.maximum
    below = low is not None and (number < low or (field.exclusive_minimum and number == low))
    if not math.isfinite(number) or below or (high is not None and number > high):
        _refuse(field.name, value, wanted)
    return number


def _check_stop(stop: Any) -> None:
    wanted = f"at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_CHARACTERS} characters"
    if isinstance(stop, str) or not isinstance(stop, Sequence) or len(stop) > MAX_STOP_STRINGS:
        _refuse("stop", stop, wanted)
    for text in stop:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            _refuse("stop", text, wanted)


def _check_stop_tokens(ids: Any, vocab_size: int) -> None:
    if isinstance(ids, str) or not isinstance(ids, Sequence) or len(ids) > MAX_STOP_TOKENS:
        _refuse("stop_token_ids", ids, f"at most {MAX_STOP_TOKENS} token ids")
    for token_id in ids:
        check_integer("stop_token_ids", token_id, 0, vocab_size - 1)


def _bounds(low: float | None, high: float | None, exclusive: bool = False) -> str:
    if low is None and high is None:
        return ""
    if high is None:
        return f" {'above' if exclusive else 'not below'} {low}"
    if low is None:
        return f" not above {high}"
    return f" above {low} and not above {high}" if exclusive else f" from {low} to {high}"


def _refuse(name: str, value: Any, wanted: str) -> NoReturn:
    message = f"{name}: {_shown(value)} is not accepted; it must be {wanted}"
    raise InvalidRequest(message, param=name)


def _shown(value: Any, limit: int = 60) -> str:
    """The value, cut short before it is rendered: a caller may have sent a megabyte."""
    if isinstance(value, str | bytes):
        value = value[: limit + 1]
    elif isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    elif isinstance(value, Sequence | Mapping):
        return f"{'an object' if isinstance(value, Mapping) else 'an array'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."
