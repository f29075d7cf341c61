"""Errors for files that are not what their name says."""

from pathlib import Path
from typing import Final

from enginebay.errors import ModelError

_POINTER: Final = b"version https://git-lfs"


def damaged(path: Path, what: str) -> ModelError:
    """An error that names the file, what is wrong, and the likely cause."""
    return ModelError(f"{path}: {what}; incomplete download? Fetch the file again")


def refuse_pointer(path: Path, beginning: bytes) -> None:
    """Refuse the small text file that Git LFS leaves in place of a large one.

    :raises ModelError: ``beginning``, the file's first bytes, are such a text
    """
    if beginning.startswith(_POINTER):
        msg = (
            f"{path}: this is a Git LFS pointer, not the weights; incomplete download? "
            "Run `git lfs pull` in its folder"
        )
        raise ModelError(msg)
