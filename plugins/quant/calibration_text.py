"""Text to calibrate on: a file of the user's, or English that ships with Python."""

from collections.abc import Sequence
from pathlib import Path
from pydoc_data import topics
from typing import Final

from enginebay.errors import StackError
from enginebay.hookspecs.format import TextAssets
from enginebay.hookspecs.model import ModelSpec

WINDOW: Final = 512
"""Tokens of one sequence."""
SHIPPED: Final = "the first half of pydoc_data.topics"


def calibration_text(file: str) -> tuple[str, str]:
    """(what it is called, the text); without a file it is the first half, by name, of the
    topics that Python's own help prints.

    :raises StackError: the file can't be read as UTF-8 text
    """
    if not file:
        names = sorted(topics.topics)
        return SHIPPED, "\n\n".join(topics.topics[name] for name in names[: len(names) // 2])
    try:
        return file, Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"calibration = {file!r}: {error}; give a file of UTF-8 text"
        raise StackError(msg) from error


def sequences(text: str, assets: TextAssets, spec: ModelSpec, tokens: int) -> list[Sequence[int]]:
    """At most so many tokens in windows, which are spread evenly over the text. Each begins
    with the token that the tokenizer puts in front of a text, if it does.

    :raises StackError: the text is too short for a single window of two tokens
    """
    ids = assets.tokenizer.encode(text, add_special_tokens=False).ids
    first = assets.tokenizer.encode("").ids[:1]
    front = first if spec.bos_token_id is not None and first == [spec.bos_token_id] else []
    size = min(WINDOW, spec.max_positions - len(front), tokens, len(ids))
    if size < 2:
        msg = f"calibration: the text has {len(ids)} tokens; give a longer one"
        raise StackError(msg)
    count = min(tokens // size, len(ids) // size)
    stride = len(ids) // count
    return [[*front, *ids[at * stride : at * stride + size]] for at in range(count)]
