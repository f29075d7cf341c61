"""Memory of this process and of the machine, as the system counts it (Linux).

``RssAnon`` is what a process's own memory takes: private pages that were touched, heap,
tensors and code made at run time. Mapped files (``RssFile``: libraries, a checkpoint
that is read) belong to the page cache, which the system takes back when it needs to.
"""

import ctypes
from pathlib import Path
from typing import Final

STATUS: Final = Path("/proc/self/status")
MEMORY: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/sys/fs/cgroup")


def resident(status: Path = STATUS) -> tuple[int, int]:
    """Bytes in memory now: (own, of mapped files); zeros where the system doesn't say."""
    found = _table(status)
    return found.get("RssAnon", 0) + found.get("RssShmem", 0), found.get("RssFile", 0)


def available(memory: Path = MEMORY, cgroup: Path = CGROUP) -> int | None:
    """Bytes that could be had without swapping; ``None`` where the system doesn't say.

    The kernel's own estimate (``MemAvailable``), or what a cgroup's limit leaves if that
    is less; the group's inactive file pages count as free, for they can be dropped.
    """
    machine = _table(memory).get("MemAvailable")
    group = _left_in_group(cgroup)
    known = [size for size in (machine, group) if size is not None]
    return min(known) if known else None


def give_back() -> None:
    """Return memory that was freed and is kept by the C library to the system (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _left_in_group(cgroup: Path) -> int | None:
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return max(int(limit) - used + int(stat.get("inactive_file", 0)), 0)


def _table(path: Path) -> dict[str, int]:
    """``Name:  123 kB`` lines in bytes."""
    try:
        text = path.read_text()
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB":
            found[name] = int(words[0]) * 1024
    return found
