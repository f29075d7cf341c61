"""Block sizes held against a real distribution of lengths.

Small blocks waste little of a sequence's last block and need long tables; large ones
the reverse. Regions of the longest length are what contiguous allocation takes.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ..errors import StackError
from ..flow import Frozen

COLUMNS: Final = ("length", "tokens", "num_tokens", "total_tokens")
"""Columns of a trace that hold a whole sequence's length, first match first."""
PAIRS: Final = (("num_prompt", "max_tokens"), ("prompt_tokens", "output_tokens"))
"""Columns whose sum is the length."""


class Rounding(Frozen, frozen=True, kw_only=True):
    """What one way to hand out memory costs for a set of sequences."""

    block_size: int
    tokens: int
    """Positions that hold something."""
    slots: int
    """Positions reserved."""
    entries: int
    """Of block tables, one for each block."""

    @property
    def waste(self) -> int:
        """Positions reserved for nothing."""
        return self.slots - self.tokens


def rounding(lengths: Sequence[int], block_size: int) -> Rounding:
    """Whole blocks for each length.

    :raises StackError: a block size below 1
    """
    if block_size < 1:
        raise StackError(f"--blocks {block_size}: a block holds 1 token or more")
    entries = sum(-(-length // block_size) for length in lengths)
    return Rounding(
        block_size=block_size,
        tokens=sum(lengths),
        slots=entries * block_size,
        entries=entries,
    )


def contiguous(lengths: Sequence[int], max_length: int) -> Rounding:
    """One region of ``max_length`` positions for each sequence.

    :raises StackError: a sequence is longer than that
    """
    if lengths and max(lengths) > max_length:
        raise StackError(
            f"--max-length {max_length}: a sequence has {max(lengths)} tokens; give that or more"
        )
    count = len(lengths)
    return Rounding(
        block_size=max_length, tokens=sum(lengths), slots=count * max_length, entries=count
    )


def read_lengths(text: str) -> list[int]:
    """Lengths as ``17,33,65``, or of a file: one a line, JSONL, or CSV with a header.

    A line that begins with ``#`` is a comment.

    :raises StackError: not there, or a line without a length; names file and line
    """
    path = Path(text)
    if text.replace(",", "").replace(" ", "").isdecimal():
        found = [int(number) for number in text.split(",") if number.strip()]
    elif path.is_file():
        found = list(_from_file(path))
    else:
        raise StackError(f"--lengths {text!r}: neither numbers with commas nor a file")
    if not found or min(found) < 1:
        raise StackError(f"--lengths {text!r}: needs lengths of 1 token or more")
    return found


def _from_file(path: Path) -> Iterator[int]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StackError(f"--lengths {str(path)!r} can't be read: {error}") from error
    filled = [(n, line.strip()) for n, line in enumerate(lines, 1) if _says_something(line)]
    if filled and "," in filled[0][1] and not filled[0][1].startswith("{"):
        rows = csv.DictReader([line for _, line in filled])
        for (number, _), row in zip(filled[1:], rows, strict=False):
            yield _length(row, f"{path}, row {number}")
        return
    for place, (number, line) in enumerate(filled):
        where = f"{path}, line {number}"
        if line.startswith("{"):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise StackError(f"{where}: not JSON ({error})") from error
            yield _length(row, where)
        elif line.isdecimal():
            yield int(line)
        elif place > 0:  # the first line may be a header
            raise StackError(f"{where}: {line!r} is not a length")


def _says_something(line: str) -> bool:
    """Neither empty nor a comment."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _length(row: dict[str, object], where: str) -> int:
    """A trace row's length: one column, or prompt and output together."""
    wanted = [(column,) for column in COLUMNS] + list(PAIRS)
    for columns in wanted:
        if all(column in row for column in columns):
            try:
                return sum(int(str(row[column])) for column in columns)
            except ValueError as error:
                raise StackError(f"{where}: {', '.join(columns)} is not a number") from error
    known = ", ".join("+".join(columns) for columns in wanted)
    raise StackError(f"{where}: no column with a length; one of {known}")
