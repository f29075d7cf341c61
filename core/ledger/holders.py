"""Who holds the KV pool: requests and tenants, each block counted once.

A block that several requests share (a forked prompt, a cached prefix) is counted for
the oldest holder; the others state it as ``shared_blocks``. So physical bytes add up to
the pool's used bytes. What is read belongs to the step thread and may move on meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ..engine import Engine

MOST_ROWS: Final = 32
"""Requests and tenants that are named, largest first; the others are summed up."""
_SUMMED: Final = ("tokens", "blocks", "shared_blocks", "logical_bytes", "physical_bytes")


def holders(engine: Engine, block_bytes: int, token_bytes: int, used: int) -> dict[str, Any]:
    """Rows of requests and tenants, and their sum.

    :param used: blocks that somebody holds
    """
    requests: dict[str, dict[str, Any]] = {}
    tables = _tables(engine)
    shared = sum(len(table) for _, table in tables) != used
    seen: set[int] = set()
    for sequence, table in tables:
        blocks, fresh = len(table), len(table)
        if shared:
            before = len(seen)
            seen.update(table)
            fresh = len(seen) - before
        row = requests.get(sequence.request_id) or _row(
            request_id=sequence.request_id, tenant=sequence.tenant
        )
        requests[sequence.request_id] = row
        tokens = sequence.num_computed
        figures = (tokens, blocks, blocks - fresh, tokens * token_bytes, fresh * block_bytes)
        for name, figure in zip(_SUMMED, figures, strict=True):
            row[name] += figure
    tenants: dict[str, dict[str, Any]] = {}
    for row in requests.values():
        known = tenants.setdefault(row["tenant"], _row(tenant=row["tenant"], requests=0))
        known["requests"] += 1
        _add(known, row)
    total = _row()
    for row in tenants.values():
        _add(total, row)
    return {
        "requests": _largest(requests, "request_id"),
        "tenants": _largest(tenants, "tenant"),
        "sum": total,
    }


def _tables(engine: Engine) -> list[tuple[Any, list[int]]]:
    """Seated sequences, oldest start first, each with a copy of its block table."""
    size = engine.limits.block_size
    tables = []
    for sequence in list(engine.roster.seats.values()):
        table = sequence.table[:]
        if engine.drafting is not None:  # blocks of rejected drafts were given back
            del table[-(-(sequence.num_computed + sequence.num_scheduled) // size) :]
        tables.append((sequence, table))
    return tables


def _row(**names: Any) -> dict[str, Any]:
    return {**names, **dict.fromkeys(_SUMMED, 0)}


def _add(total: dict[str, Any], row: dict[str, Any]) -> None:
    for name in _SUMMED:
        total[name] += row[name]


def _largest(rows: dict[str, dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The largest by physical bytes; the rest as one row without a name."""
    ordered = sorted(rows.values(), key=lambda row: -row["physical_bytes"])
    if len(ordered) <= MOST_ROWS:
        return ordered
    rest = _row(**{name: ""}, others=len(ordered) - MOST_ROWS)
    for row in ordered[MOST_ROWS:]:
        _add(rest, row)
    return [*ordered[:MOST_ROWS], rest]
