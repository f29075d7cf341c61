"""Storages: the memory behind tensors and arrays, each known by one key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..hookspecs.executor import Holding

Memory = torch.Tensor | np.ndarray[Any, np.dtype[Any]]


def storage_key(memory: Memory) -> int:
    """Equal for two views exactly when they share memory. Holds for tensors that have no
    bytes (device ``meta``) too, and only while the memory lives."""
    if isinstance(memory, torch.Tensor):
        key: int = weak_reference(memory).cdata
        return key
    return _owner(memory).__array_interface__["data"][0]  # type: ignore[no-any-return]


def weak_reference(tensor: torch.Tensor) -> Any:
    """A reference to a tensor's storage that does not keep it: ``cdata`` is its key,
    ``expired()`` says whether it ended."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def storage_bytes(memory: Memory) -> int:
    """Bytes of the whole storage behind a view."""
    if isinstance(memory, torch.Tensor):
        return memory.untyped_storage().nbytes()
    return _owner(memory).nbytes


def bytes_by_line(holdings: Iterable[Holding]) -> dict[str, int]:
    """Sums by ledger line, every storage counted once."""
    seen: set[int] = set()
    sums: dict[str, int] = {}
    for holding in holdings:
        key = storage_key(holding.memory)
        if key not in seen:
            seen.add(key)
            sums[holding.line] = sums.get(holding.line, 0) + storage_bytes(holding.memory)
    return sums


def _owner(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
