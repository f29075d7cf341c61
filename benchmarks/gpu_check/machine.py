"""Stage ``machine``: what is here, and how fast its memory is."""

import platform
from importlib import metadata
from typing import Any

import torch

from .clock import seconds
from .stage import Report

PACKAGES = ("torch", "triton", "cupy-cuda13x", "numpy", "numba", "transformers")


def run(report: Report, *, dry: bool, model: str) -> None:
    """Versions, the device, a copy in its memory."""
    report.part("versions", _versions)
    report.part("device", lambda: _device(dry))
    report.part("copy", lambda: _copy(dry))
    if not dry:
        report.part("cupy", _cupy)


def _versions() -> tuple[dict[str, Any], str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    return found, ", ".join(f"{name} {version}" for name, version in found.items())


def _device(dry: bool) -> tuple[dict[str, Any], str]:
    if dry:
        return {}, "a CPU: nothing here is measured"
    about = torch.cuda.get_device_properties(0)
    facts = {
        "name": about.name,
        "capability": f"{about.major}.{about.minor}",
        "multiprocessors": about.multi_processor_count,
        "memory": about.total_memory,
        "cuda": torch.version.cuda,
    }
    return facts, ", ".join(f"{name} {value}" for name, value in facts.items())


def _copy(dry: bool) -> tuple[dict[str, Any], str]:
    size = 2**16 if dry else 2**31
    source = torch.ones(size, dtype=torch.uint8, device="cpu" if dry else "cuda")
    target = torch.empty_like(source)
    rate = 2 * size / seconds(lambda: target.copy_(source))
    return {"bytes_per_second": rate}, f"{rate / 1e9:,.0f} GB/s read and written"


def _cupy() -> tuple[dict[str, Any], str]:
    import cupy

    x = cupy.arange(1 << 20, dtype=cupy.float32)
    total = float((x * 2).sum())
    expected = float((1 << 20) * ((1 << 20) - 1))
    if abs(total - expected) > 1e-4 * expected:
        raise ValueError(f"a sum is {total}, not {expected}")
    return {"runtime": cupy.cuda.runtime.runtimeGetVersion()}, "compiles and runs"
