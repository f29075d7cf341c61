"""The audit: is every tensor storage of the process on exactly one line? (P6)

    before = live()                      # keep it: what it names stays named
    llm = LLM(...)
    findings = audit(before, llm.assembly.executor.holdings())

Tensors are found by the garbage collector, which knows of every tensor that Python can
reach. Memory that only a library holds is no tensor: it shows in the residual.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .storages import storage_bytes, storage_key, weak_reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..hookspecs.executor import Holding


@dataclass
class Findings:
    """What an audit found, in bytes and in words."""

    bytes_by_line: dict[str, int] = field(default_factory=dict)
    unowned: list[str] = field(default_factory=list)
    """Storages on no line."""
    doubled: list[str] = field(default_factory=list)
    """Storages on two lines."""
    gone: list[str] = field(default_factory=list)
    """Holdings whose storage nobody can reach: the books name memory that is not there."""

    @property
    def sound(self) -> bool:
        """Whether every byte has one owner."""
        return not (self.unowned or self.doubled or self.gone)


def live() -> dict[int, Any]:
    """Every storage with any bytes that a tensor of this process has now, by key. While the
    result is kept, no key is used again for another storage."""
    gc.collect()
    found: dict[int, Any] = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and storage_bytes(thing):
            reference = weak_reference(thing)
            found[reference.cdata] = reference
    return found


def audit(before: Mapping[int, Any], holdings: Iterable[Holding]) -> Findings:
    """Hold the tensors made since ``before`` against what an executor says it keeps.

    :param holdings: of every engine made since then, none of them running
    """
    findings = Findings()
    owners: dict[int, Holding] = {}
    for holding in holdings:
        key, owner = storage_key(holding.memory), owners.get(storage_key(holding.memory))
        if owner is None:
            owners[key] = holding
            size = storage_bytes(holding.memory)
            known = findings.bytes_by_line.get(holding.line, 0)
            findings.bytes_by_line[holding.line] = known + size
        elif owner.line != holding.line:
            said = f"{holding.line}: {holding.name} is also {owner.line}: {owner.name}"
            findings.doubled.append(said)
    now = live()
    for key, reference in now.items():
        if key not in before and key not in owners and not reference.expired():
            findings.unowned.append(_described(key))
    for key, holding in owners.items():
        if isinstance(holding.memory, torch.Tensor) and key not in now:
            findings.gone.append(f"{holding.line}: {holding.name}")
    return findings


def _described(key: int) -> str:
    """A tensor that shows a storage, in words."""
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and storage_key(thing) == key:
            size = storage_bytes(thing)
            return f"{thing.dtype} {list(thing.shape)} on {thing.device}, {size} bytes"
    return "a storage that ended meanwhile"
