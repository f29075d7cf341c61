"""Finding and opening a model: the ordered sources and formats, asked one by one.

The first that answers wins; when none does, one error tells what each one said.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .errors import ModelError

if TYPE_CHECKING:
    from .hookspecs.format import Checkpoint, Format
    from .hookspecs.source import Files, Source


def locate(sources: "Sequence[tuple[str, Source]]", reference: str) -> "Files":
    """Ask the sources, in order, for a model.

    :param sources: plugin names and the sources they built
    :raises ModelError: a source failed on a reference of its own, or none has it
    """
    refusals: list[tuple[str, str]] = []
    for name, source in sources:
        answer = source.resolve(reference)
        if not isinstance(answer, str):
            return answer
        refusals.append((name, answer))
    raise ModelError(_report(f"model {reference!r} was not found", "sources", refusals))


def open_checkpoint(formats: "Sequence[tuple[str, Format]]", files: "Files") -> "Checkpoint":
    """Ask the formats, in order, to open a model's files.

    :param formats: plugin names and the formats they built
    :raises ModelError: the files are damaged, or of no format that the stack lists
    """
    refusals: list[tuple[str, str]] = []
    for name, format_ in formats:
        answer = format_.open(files)
        if not isinstance(answer, str):
            return answer
        refusals.append((name, answer))
    raise ModelError(_report(f"{files.path} can't be opened as a model", "formats", refusals))


def _report(what: str, slot: str, refusals: list[tuple[str, str]]) -> str:
    if not refusals:
        return f"{what}: the stack lists no {slot}; add one to `{slot}`"
    return "\n".join([f"{what}:", *(f"  {name}: {reason}" for name, reason in refusals)])
