"""Models quantized at their first use, kept in the platform's cache folder.

An entry is a model folder beside a record with every file's size. It is written elsewhere,
renamed when all of it is on disk, and made anew when a file is missing or has another
size. Its name is a hash of the model, the recipe, and this package's sources.
"""

import hashlib
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import platformdirs
import structlog

from enginebay.hookspecs.format import Checkpoint

from ..sources.fingerprint import fingerprint

RECORD: Final = "record.json"
_PART: Final = ".part-"
_STALE: Final = 86_400.0
"""Seconds after which what a killed process left behind is removed."""

log = structlog.get_logger("enginebay.quant")


class Record(msgspec.Struct, frozen=True):
    """What an entry is: present only when everything else is."""

    calibration: str
    """For the report."""
    sizes: dict[str, int] = {}
    """Bytes by file."""


Make = Callable[[Path], str]
"""Writes a model to an empty folder, and says how it was calibrated."""


class Kept:
    """The folder of models that were quantized before."""

    def __init__(self, root: Path | None = None) -> None:
        cache = platformdirs.user_cache_path("enginebay", appauthor=False)
        self.root = cache / "quantized" if root is None else root

    def get(self, key: str, make: Make) -> tuple[Path, Record]:
        """The folder of an entry, made if there is none that is whole.

        Where the cache can't be written it is a temporary one, made at each start, that goes
        with this object.
        """
        home = self.root / key
        record = read_record(home)
        if record is not None:
            return home, record
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            _remove_stale(self.root)
            part = Path(tempfile.mkdtemp(prefix=_PART, dir=self.root))
        except OSError as error:
            log.warning("the quantized model can't be kept", folder=str(home), error=str(error))
            part = Path(tempfile.mkdtemp(prefix="enginebay-"))
            weakref.finalize(self, shutil.rmtree, part, ignore_errors=True)
            return part, _write(part, make)
        log.warning(
            "the model is quantized now, once; later starts take it from the cache",
            folder=str(home),
        )
        began = time.monotonic()
        try:
            record = _write(part, make)
            _publish(part, home)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        seconds = round(time.monotonic() - began, 1)
        log.warning("quantized", seconds=seconds, how=record.calibration)
        return home, record

    def forget(self, key: str) -> None:
        """Remove an entry that turned out to be damaged."""
        log.warning("a quantized model in the cache is damaged", folder=str(self.root / key))
        shutil.rmtree(self.root / key, ignore_errors=True)


def key_of(checkpoint: Checkpoint, recipe: object) -> str:
    """A folder's name: equal for the same model, recipe and code.

    :param recipe: plain data
    """
    files = {Path(info.file) for info in checkpoint.tensors.values()}
    digest = hashlib.sha256(fingerprint(files).encode())
    model = [dict(checkpoint.config), dict(checkpoint.generation), checkpoint.text.identity]
    digest.update(msgspec.json.encode([model, recipe], order="sorted"))
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return f"{Path(checkpoint.location).stem}-{digest.hexdigest()[:16]}"


def read_record(home: Path) -> Record | None:
    """The record of an entry that is whole; ``None``: there is none."""
    try:
        record = msgspec.json.decode((home / RECORD).read_bytes(), type=Record)
        whole = all((home / name).stat().st_size == size for name, size in record.sizes.items())
    except (OSError, msgspec.DecodeError):
        return None
    return record if whole and record.sizes else None


def _write(folder: Path, make: Make) -> Record:
    calibration = make(folder)
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    record = Record(calibration=calibration, sizes=sizes)
    (folder / RECORD).write_bytes(msgspec.json.encode(record))
    return record


def _publish(part: Path, home: Path) -> None:
    """Rename; what another process put there first, whole, stands."""
    try:
        part.rename(home)
    except OSError:
        if read_record(home) is None:
            shutil.rmtree(home, ignore_errors=True)
            part.rename(home)


def _remove_stale(root: Path) -> None:
    for path in root.glob(f"{_PART}*"):
        if time.time() - path.stat().st_mtime > _STALE:
            shutil.rmtree(path, ignore_errors=True)
