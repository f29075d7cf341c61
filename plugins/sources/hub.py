"""Models of the Hugging Face Hub, ``owner/name`` or ``owner/name@revision``.

Downloads are left to the optional package ``huggingface_hub``: its cache, its token and
its settings (``HF_HOME``, ``HF_ENDPOINT``, ``HF_TOKEN``) apply.
"""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from enginebay import hookimpl
from enginebay.errors import ModelError
from enginebay.hookspecs.source import Files, Source, SourceContext

CONTRACT = (1, 0)
_REFERENCE: Final = re.compile(r"(hub:)?([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is fetched of a repository."""

    files: tuple[str, ...] = ("*.json", "*.jinja", "*.safetensors")
    """Patterns of the files to fetch; for a GGUF repository name one file, such as
    ``"*Q4_K_M.gguf"``."""
    skip: tuple[str, ...] = ("consolidated*", "*/*.safetensors")
    """Patterns of files to leave out: a vendor's second copy of the weights."""


class HubSource:
    """Fetches snapshots through ``huggingface_hub``."""

    def __init__(self, options: Options, context: SourceContext) -> None:
        self._options = options
        self._context = context

    def resolve(self, reference: str) -> Files | str:
        """A snapshot's folder, or why there is none.

        :raises ModelError: the reference begins with ``hub:`` and can't be fetched
        """
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            return f"{reference!r} is no repository; write owner/name or owner/name@revision"
        marked, repository, revision = match.groups()
        answer = self._fetch(repository, revision)
        if isinstance(answer, str) and marked:
            msg = f"model {reference!r}: {answer}"
            raise ModelError(msg)
        return answer

    def _fetch(self, repository: str, revision: str | None) -> Files | str:
        if find_spec("huggingface_hub") is None:
            return "needs the package huggingface_hub: pip install huggingface_hub"
        from huggingface_hub import snapshot_download  # loads an HTTP client, so only here
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        self._context.progress(f"fetching {repository}", 0, None)
        try:
            folder = snapshot_download(
                repository,
                revision=revision,
                allow_patterns=list(self._options.files),
                ignore_patterns=list(self._options.skip),
                local_files_only=self._context.offline,
            )
        except LocalEntryNotFoundError as error:
            state = "the network may not be used" if self._context.offline else _first_line(error)
            return f"{repository} is not in the Hub's cache, and {state}"
        except (HfHubHTTPError, OSError, ValueError) as error:
            return f"{repository} can't be fetched: {_first_line(error)}"
        if not any(Path(folder).iterdir()):
            return f"{repository} has no files that match {', '.join(self._options.files)}"
        commit = Path(folder).name
        return Files(path=folder, origin=f"hub:{repository}@{commit}", revision=commit)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@hookimpl
def enginebay_source(options: Options, context: SourceContext) -> Source:
    """Build the source of Hub models."""
    return HubSource(options, context)
