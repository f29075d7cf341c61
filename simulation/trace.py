"""Traces: who asks for what, and when. Recorded ones are files, one call a line.

JSON lines, each an object with the fields of ``Call``. CSV as the Azure LLM inference
trace of 2023 has it (Patel et al., Splitwise; arXiv 2311.18677): the columns
``TIMESTAMP,ContextTokens,GeneratedTokens``.
"""

import csv
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from enginebay.errors import EnginebayError
from enginebay.flow import Frozen

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class TraceError(EnginebayError):
    """A trace can't be read: where, what stands there, and the fix."""


class Call(Frozen, frozen=True, kw_only=True):
    """One request of a trace."""

    time: float
    """Seconds since the trace began."""
    prompt_tokens: int
    output_tokens: int
    """Tokens that the answer has, each choice's."""
    max_tokens: int = 0
    """What the caller allows; 0: exactly ``output_tokens``. Policies see this number, not
    the answer's length."""
    tenant: str = "default"
    priority: int = 0
    deadline: float | None = None
    """Seconds after its arrival."""
    prefix: str = ""
    """Calls of one tenant and prefix begin with the same tokens."""
    prefix_tokens: int = 0
    """How many of them."""
    n: int = 1


def read(path: str) -> list[Call]:
    """The calls of a file, by time; the first comes at 0.

    :raises TraceError: names file, line, what is wrong, and what would be right
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"trace {path!r} can't be read: {error}") from error
    lines = text.splitlines()
    calls = list(_csv(path, lines) if path.endswith(".csv") else _json_lines(path, lines))
    if not calls:
        raise TraceError(f"trace {path!r} holds no calls")
    return begun_at_zero(calls)


def begun_at_zero(calls: Iterable[Call]) -> list[Call]:
    """In order of time, shifted so that the first comes at 0."""
    ordered = sorted(calls, key=lambda call: call.time)
    first = ordered[0].time if ordered else 0.0
    return [msgspec.structs.replace(call, time=call.time - first) for call in ordered]


def rescaled(
    calls: list[Call], *, time: float = 1.0, lengths: float = 1.0, limit: int = 0
) -> list[Call]:
    """The first ``limit`` calls (0: all), their times and lengths multiplied.

    :raises TraceError: a factor is not above 0, or the limit below
    """
    for name, factor in (("time", time), ("lengths", lengths)):
        if not factor > 0:
            raise TraceError(f"the scale of {name} is {factor}; it must be above 0")
    if limit < 0:
        raise TraceError(f"the limit is {limit} calls; 1 or more, or 0 for all of them")
    return [
        msgspec.structs.replace(
            call,
            time=call.time * time,
            prompt_tokens=max(round(call.prompt_tokens * lengths), 1),
            output_tokens=max(round(call.output_tokens * lengths), 1),
            max_tokens=round(call.max_tokens * lengths),
            prefix_tokens=round(call.prefix_tokens * lengths),
        )
        for call in calls[: limit or None]
    ]


def _json_lines(path: str, lines: list[str]) -> Iterator[Call]:
    decoder = msgspec.json.Decoder(Call)
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        where = f"{path}:{number}"
        try:
            call = decoder.decode(line)
        except msgspec.DecodeError as error:
            known = ", ".join(Call.__struct_fields__)
            raise TraceError(f"{where}: {error}; a line is an object of {known}") from error
        yield checked(call, where)


def checked(call: Call, where: str) -> Call:
    """:raises TraceError: a number that makes no sense, with where it stands"""
    wrong = {
        "prompt_tokens": call.prompt_tokens < 1,
        "output_tokens": call.output_tokens < 1,
        "max_tokens": call.max_tokens and call.max_tokens < call.output_tokens,
        "n": call.n < 1,
        "deadline": call.deadline is not None and not call.deadline > 0,
        "prefix_tokens": not 0 <= call.prefix_tokens <= call.prompt_tokens,
    }
    for name, bad in wrong.items():
        if bad:
            raise TraceError(f"{where}: {name} = {getattr(call, name)} can't be, in {call}")
    return call


def _csv(path: str, lines: list[str]) -> Iterator[Call]:
    reader = csv.DictReader(lines)
    if not set(COLUMNS) <= set(reader.fieldnames or ()):
        raise TraceError(f"{path}: the columns are {reader.fieldnames}; needed: {list(COLUMNS)}")
    for number, row in enumerate(reader, start=2):
        try:
            # Seven digits of a second are one more than datetime reads.
            moment = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26]).timestamp()
            call = Call(
                time=moment,
                prompt_tokens=max(int(row["ContextTokens"]), 1),
                output_tokens=max(int(row["GeneratedTokens"]), 1),
            )
        except (ValueError, AttributeError, TypeError) as error:
            raise TraceError(f"{path}:{number}: {error} in {row}") from error
        yield call
