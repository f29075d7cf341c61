"""Models that lie on this machine: a folder, or one file."""

from pathlib import Path
from typing import Final

import msgspec

from enginebay import hookimpl
from enginebay.errors import ModelError
from enginebay.hookspecs.source import Files, Source, SourceContext

from .fingerprint import fingerprint

CONTRACT = (1, 0)
_WEIGHTS: Final = (".safetensors", ".gguf")
_TEXT: Final = (".json", ".jinja", ".model")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where relative references are looked for."""

    root: str = "."
    """Folder that relative references start from."""


class PathSource:
    """Takes a reference as a path; ``~`` is the home folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def resolve(self, reference: str) -> Files | str:
        """The folder or file, or why there is none.

        :raises ModelError: the reference can only be a path, and holds no model
        """
        path = self._root / Path(reference).expanduser()
        problem = _problem(path)
        if problem is None:
            return Files(
                path=str(path.resolve()),
                origin=str(path),
                revision=fingerprint(_model_files(path)),
            )
        if _only_a_path(reference):
            msg = f"model {reference!r}: {problem}"
            raise ModelError(msg)
        return problem


def _problem(path: Path) -> str | None:
    if not path.exists():
        return f"there is no file or folder {path.absolute()}"
    if path.is_dir() and not any(each.suffix in _WEIGHTS for each in _model_files(path)):
        have = sorted(each.name for each in path.iterdir())
        listed = ", ".join(have[:8]) or "nothing"
        return f"folder {path.absolute()} has no *.safetensors or *.gguf; it has {listed}"
    return None


def _model_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [each for each in path.iterdir() if each.is_file() and each.suffix in _WEIGHTS + _TEXT]


def _only_a_path(reference: str) -> bool:
    return reference.startswith(("/", "./", "../", "~")) or reference.endswith(_WEIGHTS)


@hookimpl
def enginebay_source(options: Options, context: SourceContext) -> Source:
    """Build the source of local models."""
    return PathSource(Path(options.root).expanduser())
