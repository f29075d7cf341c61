"""Who calls: API keys, looked up and checked, read again when their file changes."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from enginebay.errors import StackError
from enginebay.keyfile import Key, new_key, read_keys, split_key

LOOK_SECONDS: Final = 1.0
"""How often the file may be looked at; a revoked key works no longer than that."""
_NO_SECRET: Final = b"-" * 43
_DECOY: Final = new_key("nobody")[0]
"""Checked where there is no such key: an unknown id takes as long as a known one."""

log = structlog.get_logger("enginebay.http")


@dataclass(frozen=True)
class Caller:
    """Whose request it is."""

    tenant: str
    admin: bool = False
    key_id: str = ""

    def may_see(self, tenant: str) -> bool:
        """Whether that tenant's requests and memory are this caller's to see."""
        return self.admin or tenant == self.tenant


ANYONE: Final = Caller("default")
"""Every caller of a server without keys."""


class KeyRing:
    """The keys of one file. Belongs to one thread."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """:raises StackError: the file can't be read, or a line of it is wrong"""
        self._path = path
        self._clock = clock
        self._looked = clock()
        self._seen = _signature(path)
        self._keys: Mapping[str, Key] = read_keys(path)
        self._told()

    def caller(self, presented: bytes | None) -> Caller | None:
        """Who holds this key; ``None``: nobody."""
        self._refresh()
        parts = None if presented is None else split_key(presented)
        id_, secret = ("", _NO_SECRET) if parts is None else parts
        key = self._keys.get(id_, _DECOY)
        if not key.matches(secret) or key is _DECOY:
            return None
        return Caller(key.tenant, key.admin, key.id)

    def _refresh(self) -> None:
        """Read a changed file; one that is broken changes nothing."""
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        signature = _signature(self._path)
        if signature == self._seen:
            return
        self._seen, problem = signature, ""
        try:
            self._keys = read_keys(self._path)
        except StackError as error:
            problem = str(error)
        if problem:
            log.error("the key file is broken; the keys read before stay", problem=problem)
        else:
            self._told()

    def _told(self) -> None:
        log.info("keys read", file=str(self._path), keys=len(self._keys))
        if not self._keys:
            log.warning("the key file has no keys: nobody gets in", file=str(self._path))
        if self._seen is not None and self._seen[0] & 0o004:
            log.warning("everybody on this machine can read the key file", file=str(self._path))


def presented_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The key of ``Authorization: Bearer``, else of ``x-api-key``; ``None``: neither."""
    given = dict(headers)
    scheme, _, key = given.get(b"authorization", b"").strip().partition(b" ")
    if scheme.lower() == b"bearer" and key.strip():
        return key.strip()
    return given.get(b"x-api-key", b"").strip() or None


def _signature(path: Path) -> tuple[int, ...] | None:
    """What changes when a file does; ``None``: it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mode, found.st_mtime_ns, found.st_size, found.st_ino
