"""A rehearsal of the load: which tensors would stay in memory, without reading one.

The model family builds its decoder on the device ``meta``, whose tensors have shapes
and no bytes; the quantizer packs them there too. So the plan knows of stacked
projections, tied heads, scales and copies what the load will do, to the byte.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import torch

from ..hookspecs.executor import Holding
from ..weights import CheckpointBuilder
from .lines import Line, Part
from .storages import bytes_by_line, storage_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..hookspecs.executor import ExecutorContext
    from ..hookspecs.format import Checkpoint
    from ..hookspecs.quant import QuantReport

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Rehearsal:
    """What a load will leave behind."""

    held: tuple[Holding, ...]
    """The tensors, on ``meta``."""
    report: QuantReport | None
    """What the quantizer said of them; ``None`` when it could not be rehearsed."""
    note: str = ""
    """Why not."""

    @property
    def line(self) -> Line:
        """The ledger's line ``weights``."""
        return Line(
            name="weights",
            planned=bytes_by_line(self.held).get("weights", 0),
            note=self.note or "rehearsed without reading",
            parts=grouped(self.held),
        )


def rehearse(context: ExecutorContext) -> Rehearsal:
    """What the weights will be. A family or scheme that can't work without bytes is taken
    from its weight map, in the stack's dtype."""
    spec, family = context.spec, context.family
    weights = family.weights(spec)
    quantizer = copy.deepcopy(context.quantizer)  # it may count what it has packed
    try:
        builder = CheckpointBuilder(
            context.checkpoint,
            weights,
            quantizer,
            context.table,
            context.dtype,
            "meta",
        )
        family.build(spec, builder)
    except Exception as error:  # noqa: BLE001  a stranger's code; the load will say more
        log.info("the load can't be rehearsed", error=f"{type(error).__name__}: {error}")
        dtype: torch.dtype = getattr(torch, context.dtype)
        held = [
            Holding("weights", w.name, torch.empty(w.shape, dtype=dtype, device="meta"), w.role)
            for w in weights
        ]
        note = f"from the weight map in {context.dtype}, not rehearsed: {error}"
        return Rehearsal(tuple(held), None, note)
    return Rehearsal(tuple(builder.holdings.values()), quantizer.report())


def grouped(holdings: Iterable[Holding]) -> tuple[Part, ...]:
    """Tensors summed by role, dtype and scheme, largest first."""
    groups: dict[tuple[str, str, str], Part] = {}
    for holding in holdings:
        dtype = str(holding.memory.dtype).removeprefix("torch.")
        key = (holding.role or holding.name, dtype, holding.scheme)
        known = groups.get(key) or Part(
            name=key[0], num_bytes=0, dtype=dtype, scheme=holding.scheme
        )
        groups[key] = _larger(known, storage_bytes(holding.memory))
    return tuple(sorted(groups.values(), key=lambda part: -part.num_bytes))


def stored(checkpoint: Checkpoint) -> tuple[Part, ...]:
    """The checkpoint's tensors as its files have them, by stored type, largest first."""
    groups: dict[str, Part] = {}
    for info in checkpoint.tensors.values():
        known = groups.get(info.dtype) or Part(name=info.dtype, num_bytes=0, dtype=info.dtype)
        groups[info.dtype] = _larger(known, info.num_bytes, info.metadata_bytes)
    return tuple(sorted(groups.values(), key=lambda part: -part.num_bytes))


def _larger(part: Part, num_bytes: int, metadata_bytes: int = 0) -> Part:
    return Part(
        name=part.name,
        num_bytes=part.num_bytes + num_bytes,
        count=part.count + 1,
        dtype=part.dtype,
        scheme=part.scheme,
        metadata_bytes=part.metadata_bytes + metadata_bytes,
    )
