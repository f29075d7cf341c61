"""Source: a model reference becomes files on disk, with where they came from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..flow import Frozen
from .markers import hookspec


class Files(Frozen, frozen=True, kw_only=True):
    """A model on disk and its provenance."""

    path: str
    """A directory, or one file."""
    origin: str
    """What a person would type to get it again."""
    revision: str
    """Commit, version or content hash: part of the cache identity."""
    sha256: dict[str, str] = {}
    """Of the files whose hash was checked."""


Progress = Callable[[str, int, int | None], None]
"""(what, bytes done, bytes in all or ``None``)."""


class Source(Protocol):
    """One place where models come from."""

    def resolve(self, reference: str) -> Files | str:
        """Files, or why this source does not have it: the next one is then asked.

        A reference that is clearly this source's and fails raises ``ModelError``.
        """


@dataclass(frozen=True)
class SourceContext:
    """What a source is built with."""

    cache: Path
    """A folder of its own under the platform's cache folder."""
    progress: Progress
    offline: bool = False


@hookspec(firstresult=True)
def enginebay_source(options: Any, context: SourceContext) -> Source:  # type: ignore[empty-body]
    """Build a model source. Called once for each name in the stack's ``sources``.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: cache folder, progress display, and whether the network may be used
    """
