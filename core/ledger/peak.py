"""Temporary memory of a step, measured: every tensor that torch makes, while it lives."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _python_dispatch
from torch.utils._pytree import tree_leaves

from .storages import storage_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass
class Peak:
    """The highest sum of temporary memory, in bytes."""

    num_bytes: int = 0


@contextmanager
def measured_peak(device: str) -> Iterator[Peak]:
    """Measure what runs inside, on this thread.

    On a GPU by torch's own allocator. On a CPU by watching torch's operations: the same
    bytes on every machine, but without what a library keeps to itself within one
    operation, which shows in the ledger's residual.
    """
    peak = Peak()
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak.num_bytes = torch.cuda.max_memory_allocated(device) - before
        return
    with _Watch(peak):
        yield peak


class _Watch(_python_dispatch.TorchDispatchMode):
    """Adds up the storages that operations made and that are alive."""

    def __init__(self, peak: Peak) -> None:
        super().__init__()
        self._peak = peak
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage_key(each) for each in _tensors((args, kwargs))}
        for made in _tensors(result):
            key = storage_key(made)
            if key not in self._alive and key not in given:
                storage = made.untyped_storage()
                self._alive[key] = (StorageWeakRef(storage), storage.nbytes())
        # An operation's inputs live as long as it runs: the highest moment is at its end.
        self._alive = {k: each for k, each in self._alive.items() if not each[0].expired()}
        now = sum(size for _, size in self._alive.values())
        self._peak.num_bytes = max(self._peak.num_bytes, now)
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
