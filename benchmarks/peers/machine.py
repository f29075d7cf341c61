"""The machine that a run was made on, and how much of it others took meanwhile."""

import os
import platform
import time
from pathlib import Path

FEATURES = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx_vnni",
    "amx_int8",
    "amx_bf16",
)
"""Instruction sets that decide how fast matrices are multiplied."""


def describe() -> dict[str, object]:
    """Processor, instruction sets, cores, memory and system."""
    cpu = _fields(Path("/proc/cpuinfo"))
    flags = cpu.get("flags", "").split()
    return {
        "cpu": cpu.get("model name", platform.processor()),
        "features": [name for name in FEATURES if name in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory": _fields(Path("/proc/meminfo")).get("MemTotal", ""),
        "system": platform.platform(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "load_average": os.getloadavg()[0],
    }


def busy_seconds() -> float:
    """Processor seconds that this machine has worked, and that its host took from it."""
    first = Path("/proc/stat").read_text("utf-8").split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _waiting, irq, softirq, stolen = (int(each) for each in first[:8])
    ticks = user + nice + system + irq + softirq + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def group_seconds(group: int) -> float:
    """Processor seconds of all processes that are in a process group now."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text("utf-8").rsplit(")", 1)[1].split()
        except OSError:
            continue  # it ended since
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _fields(path: Path) -> dict[str, str]:
    """``name : value`` lines; the first of each name."""
    found: dict[str, str] = {}
    for line in path.read_text("utf-8").splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found
