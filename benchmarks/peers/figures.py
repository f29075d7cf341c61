"""Medians, ratios and agreement of what was measured."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .rounds import Measurement

OWN = "enginebay:"
"""How enginebay's rows begin."""


def medians(measured: Iterable[Measurement]) -> dict[str, dict[str, dict[str, float]]]:
    """By engine and point: the median rate, the lowest and highest, the others' load."""
    grouped: dict[tuple[str, str], list[Measurement]] = {}
    for each in measured:
        grouped.setdefault((each.engine, each.point), []).append(each)
    table: dict[str, dict[str, dict[str, float]]] = {}
    for (engine, point), group in grouped.items():
        rates = [each.rate for each in group]
        table.setdefault(engine, {})[point] = {
            "median": statistics.median(rates),
            "low": min(rates),
            "high": max(rates),
            "others": statistics.median(each.others for each in group),
            "rounds": len(rates),
        }
    return table


def ratios(
    table: Mapping[str, Mapping[str, Mapping[str, float]]], facts: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Each stack of enginebay against each peer of its class, and against the best of them.

    :return: ``stack``, ``against`` (a peer, or ``best``), ``points``: ratio by point; for
        ``best`` also ``whom``: which peer it was, by point
    """
    found = []
    for own in (name for name in table if name.startswith(OWN)):
        peers = [
            name
            for name in table
            if not name.startswith(OWN) and facts[name]["bits"] == facts[own]["bits"]
        ]
        for peer in peers:
            shared = [point for point in table[own] if point in table[peer]]
            quotients = {p: table[own][p]["median"] / table[peer][p]["median"] for p in shared}
            found.append({"stack": own, "against": peer, "points": quotients})
        if peers:
            found.append(_best(own, peers, table))
    return found


def agreement(measured: Sequence[Measurement], reference: str) -> dict[str, float]:
    """By engine: the share of tokens before the first that differs from the reference's.

    The same weights in float32 give the same tokens but for ties of rounding; quantized
    ones leave them sooner or later, and what follows compares nothing.

    :return: empty when the reference was not measured
    """
    known = {(each.point, each.turn): each.outputs for each in measured if each.engine == reference}
    same: dict[str, int] = {}
    asked: dict[str, int] = {}
    for each in measured:
        rows = known.get((each.point, each.turn))
        if rows is None:
            continue
        for row, right in zip(each.outputs, rows, strict=True):
            same[each.engine] = same.get(each.engine, 0) + _shared(row, right)
            asked[each.engine] = asked.get(each.engine, 0) + len(right)
    return {engine: same[engine] / asked[engine] for engine in asked}


def reference(facts: Mapping[str, Mapping[str, Any]]) -> str:
    """The first of enginebay's stacks in float32; empty when there is none."""
    plain = [n for n, each in facts.items() if n.startswith(OWN) and each["bits"] == "float32"]
    return plain[0] if plain else ""


def _best(
    own: str, peers: Sequence[str], table: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> dict[str, Any]:
    quotients, whom = {}, {}
    for point, figures in table[own].items():
        able = [peer for peer in peers if point in table[peer]]
        if able:
            best = max(able, key=lambda peer: table[peer][point]["median"])
            quotients[point] = figures["median"] / table[best][point]["median"]
            whom[point] = best
    return {"stack": own, "against": "best", "points": quotients, "whom": whom}


def _shared(row: Sequence[int], right: Sequence[int]) -> int:
    """Tokens before the first difference."""
    for at, (one, other) in enumerate(zip(row, right, strict=False)):
        if one != other:
            return at
    return min(len(row), len(right))
