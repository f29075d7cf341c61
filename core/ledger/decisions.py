"""Three decisions about number formats, each made for itself: weights, activations, KV."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lines import Decision
from .storages import storage_bytes
from .table import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..hookspecs.executor import Holding
    from ..hookspecs.kernel import KVSpec
    from ..hookspecs.model import ModelSpec
    from ..hookspecs.quant import QuantReport

MATRICES = ("linear", "head", "embedding")
"""Roles of weights that a scheme could take."""
SCALE_BYTES = 4
"""Of a float32 scale of quantized keys or values."""


def decisions(
    held: Sequence[Holding], report: QuantReport | None, kv: KVSpec, pool_bytes: int
) -> tuple[Decision, ...]:
    """A row for each.

    :param held: the tensors of the weights, no storage twice
    :param report: the quantizer's own; ``None``: nothing is known of it
    :param pool_bytes: of the KV blocks that are planned
    """
    return (_weights(held, report), _activations(report), _kv(kv, pool_bytes))


def tied_copies(spec: ModelSpec, held: Sequence[Holding]) -> str:
    """Both copies of a tied embedding, when the head has one of its own; else empty."""
    roles = {each.role: each for each in held if each.role in ("embedding", "head")}
    if not spec.tie_embeddings or len(roles) < 2:
        return ""
    told = [f"{each.name} ({_form(each)}, {_size(each)})" for each in roles.values()]
    return " and ".join(told)


def _weights(held: Sequence[Holding], report: QuantReport | None) -> Decision:
    metadata = sum(storage_bytes(each.memory) for each in held if each.role == "metadata")
    total = sum(storage_bytes(each.memory) for each in held)
    forms: dict[str, dict[str, int]] = {}
    for each in held:
        if each.role in MATRICES:
            roles = forms.setdefault(_form(each), {})
            roles[each.role] = roles.get(each.role, 0) + storage_bytes(each.memory)
    notes = [
        f"{form}: {', '.join(f'{role} {size(count)}' for role, count in roles.items())}"
        for form, roles in forms.items()
    ]
    if report is not None and report.scales:
        columns = f" of {report.group_size}" if report.group_size else ""
        notes.append(f"a scale a {report.scales}{columns}")
    if report is not None and report.float_layers:
        count = len(report.float_layers)
        notes.append(f"{count} layer{'s' * (count > 1)} left in float")
    return Decision(
        what="weights",
        choice=report.scheme if report else "not rehearsed",
        num_bytes=total - metadata,
        metadata_bytes=metadata,
        note="; ".join(notes),
    )


def _activations(report: QuantReport | None) -> Decision:
    notes = {
        "int8 dynamic": "a scale a token",
        "int8 dynamic, by group": "a scale a token and group",
        "int8 static": "a scale a layer",
    }
    choice = report.activations if report else "not rehearsed"
    return Decision(what="activations", choice=choice, note=notes.get(choice, ""))


def _kv(kv: KVSpec, pool_bytes: int) -> Decision:
    kept = kv.cache_dtype or kv.dtype
    share = SCALE_BYTES / (kv.head_dim + SCALE_BYTES) if kv.cache_dtype else 0.0
    scales = round(pool_bytes * share)
    return Decision(
        what="kv",
        choice=kept,
        num_bytes=pool_bytes - scales,
        metadata_bytes=scales,
        note="a scale a token and KV head" if kv.cache_dtype else "",
    )


def _form(holding: Holding) -> str:
    dtype = str(holding.memory.dtype).removeprefix("torch.")
    return dtype if holding.scheme in ("", "float") else f"{holding.scheme} in {dtype}"


def _size(holding: Holding) -> str:
    return size(storage_bytes(holding.memory))
