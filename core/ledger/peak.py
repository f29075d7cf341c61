"""Temporary memory of a step, measured: what torch allocates and gives back meanwhile."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_RECORDER: Final[Any] = torch.autograd
"""Torch's recorder of allocations. The one under ``torch.profiler`` would do as well, but
its library talks to standard error; a dispatch mode would load a symbolic algebra system."""


@dataclass
class Peak:
    """The highest sum of temporary memory, in bytes."""

    num_bytes: int = 0


@contextmanager
def measured_peak(device: str) -> Iterator[Peak]:
    """Measure what runs inside, on this thread.

    On a GPU by the statistics of torch's allocator; on a CPU, where it keeps none, by its
    record of allocations: the same bytes on every machine, but without what a library
    keeps to itself, which shows in the ledger's residual.
    """
    peak = Peak()
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak.num_bytes = torch.cuda.max_memory_allocated(device) - before
        return
    _RECORDER._enable_profiler_legacy(_memory_alone())  # noqa: SLF001 (see above)
    try:
        yield peak
    finally:
        records = _RECORDER._disable_profiler_legacy()  # noqa: SLF001
        now = 0
        for record in (record for thread in records for record in thread):
            if record.kind() == "memory_alloc":
                now += record.cpu_memory_usage()
                peak.num_bytes = max(peak.num_bytes, now)


def _memory_alone() -> Any:
    """Record memory; no shapes, stacks, operations or modules."""
    library: Any = torch._C  # noqa: SLF001
    return _RECORDER.ProfilerConfig(
        _RECORDER.ProfilerState.CPU,
        False,
        True,
        False,
        False,
        False,
        library._profiler._ExperimentalConfig(),  # noqa: SLF001
    )
