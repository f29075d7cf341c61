"""Ledgers as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .block_sizes import Rounding
    from .lines import Part, Plan


def size(num_bytes: int) -> str:
    """``13.04 GiB``; below a MiB in KiB or bytes, whole ones without a fraction."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(num_bytes) >= factor:
            whole = num_bytes % factor == 0 and unit == "KiB"
            return f"{num_bytes / factor:.{0 if whole else 2}f} {unit}"
    return f"{num_bytes} B"


def plan_table(plan: Plan) -> str:
    """Lines, their sum, what is left, and the figures of one request."""
    rows = []
    for line in plan.lines:
        planned = size(line.planned) if line.asked else "-"
        rows.append((line.name, planned, line.note))
        rows += [("  " + part.name, size(part.num_bytes), _told(part)) for part in line.parts]
    total = f" of {size(plan.device_memory)}" if plan.device_memory else ""
    rows.append(("total", size(plan.total), total.strip()))
    if plan.device_memory:
        rows.append(("left", size(plan.left), "" if plan.left >= 0 else "it does not fit"))
    text = columns(("line", "planned", ""), rows)
    return "\n".join([text, *_decisions(plan), *_requests(plan), *_stored(plan)])


def block_table(ways: Sequence[Rounding], whole: Rounding, count: int) -> str:
    """Block sizes side by side, contiguous regions last."""
    named = [(f"block {way.block_size}", way) for way in ways]
    named.append((f"contiguous {whole.block_size}", whole))
    rows = [
        (name, f"{way.slots:,}", f"{way.waste:,}", _share(way), f"{way.entries:,}")
        for name, way in named
    ]
    head = f"{count:,} sequences, {whole.tokens:,} tokens\n"
    return head + columns(("", "slots", "waste", "waste %", "entries"), rows)


def columns(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Left-aligned names, right-aligned figures, a last column of notes if it has no title."""
    cells = [tuple(titles), *(tuple(str(cell) for cell in row) for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(titles))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place == 0 or not titles[place] else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def _both(num_bytes: int) -> str:
    """In powers of two and of ten: ``0.50 GiB (0.5 GB)``."""
    if num_bytes < 2**28:
        return f"{size(num_bytes)} ({num_bytes / 1e6:.1f} MB)"
    return f"{num_bytes / 2**30:.2f} GiB ({num_bytes / 1e9:.1f} GB)"


def _decisions(plan: Plan) -> list[str]:
    if not plan.decisions:
        return []
    rows = [
        (each.what, each.choice, *_figures(each.num_bytes, each.metadata_bytes), each.note)
        for each in plan.decisions
    ]
    told = ["", columns(("decision", "choice", "bytes", "scales", ""), rows)]
    return told + ([f"the tied weight is kept twice: {plan.copies}"] if plan.copies else [])


def _figures(num_bytes: int, metadata_bytes: int) -> tuple[str, str]:
    return (size(num_bytes), size(metadata_bytes)) if num_bytes else ("-", "-")


def _requests(plan: Plan) -> list[str]:
    if not plan.token_bytes:
        return []
    said = [f"\nKV: {size(plan.token_bytes)} a token"]
    if plan.tokens:
        each = plan.request_bytes
        said.append(
            f"a request of {plan.tokens:,} tokens: {_both(each)} in "
            f"{plan.request_blocks:,} blocks of {plan.block_size}"
        )
        logical = plan.requests * plan.tokens * plan.token_bytes
        if plan.requests:
            kv = plan.line("kv").planned
            said.append(f"{plan.requests:,} requests: logical {size(logical)}, physical {size(kv)}")
        if plan.device_memory:
            said.append(f"requests of that length that fit: {plan.fits:,}")
    return said


def _stored(plan: Plan) -> list[str]:
    if not plan.stored:
        return []
    rows = [
        (part.name, size(part.num_bytes), str(part.count), size(part.metadata_bytes))
        for part in plan.stored
    ]
    titles = ("stored as", "bytes", "tensors", "of them scales")
    return ["", columns(titles, rows)]


def _told(part: Part) -> str:
    facts = [f"{part.count} tensors" if part.count else "", part.dtype, part.scheme]
    return ", ".join(fact for fact in facts if fact)


def _share(way: Rounding) -> str:
    return f"{100 * way.waste / way.slots:.1f}"
