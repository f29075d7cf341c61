"""The comparison as text: a row a figure, a column a run."""

from collections.abc import Callable, Sequence
from typing import Final

from .figures import Figures, Spread

ROWS: Final[tuple[tuple[str, Callable[[Figures], str]], ...]] = (
    ("requests done", lambda f: f"{f.done}"),
    ("  refused", lambda f: f"{f.refused}"),
    ("  deadline missed", lambda f: f"{f.missed}"),
    ("  failed", lambda f: f"{f.failed}"),
    ("TTFT p50 (s)", lambda f: _at(f.ttft, "p50")),
    ("  p95", lambda f: _at(f.ttft, "p95")),
    ("  p99", lambda f: _at(f.ttft, "p99")),
    ("ITL p50 (s)", lambda f: _at(f.itl, "p50")),
    ("  p95", lambda f: _at(f.itl, "p95")),
    ("  p99", lambda f: _at(f.itl, "p99")),
    ("  max", lambda f: _at(f.itl, "max")),
    ("end to end p50 (s)", lambda f: _at(f.e2e, "p50")),
    ("  p95", lambda f: _at(f.e2e, "p95")),
    ("  p99", lambda f: _at(f.e2e, "p99")),
    ("good requests", lambda f: f"{f.good}"),
    ("goodput (requests/s)", lambda f: f"{f.goodput:.2f}"),
    ("throughput (requests/s)", lambda f: f"{f.requests_per_second:.2f}"),
    ("  generated tokens/s", lambda f: f"{f.tokens_per_second:.0f}"),
    ("  prompt tokens/s", lambda f: f"{f.prompt_tokens_per_second:.0f}"),
    ("fairness: largest gap", lambda f: f"{f.fairness_gap:.0f}"),
    ("  Jain's index", lambda f: "-" if f.jain is None else f"{f.jain:.3f}"),
    ("preempted: recompute", lambda f: f"{f.preemptions.get('recompute', 0)}"),
    ("  swap", lambda f: f"{f.preemptions.get('swap', 0)}"),
    ("recomputed tokens", lambda f: f"{f.recomputed_tokens}"),
    ("prefix hit rate", lambda f: f"{f.prefix_hit_rate:.1%}"),
    ("KV held: mean", lambda f: f"{f.kv_mean:.1%}"),
    ("  peak", lambda f: f"{f.kv_peak:.1%}"),
    ("  idle part of it", lambda f: f"{f.kv_waste:.1%}"),
    ("simulated (s)", lambda f: f"{f.seconds:.1f}"),
    ("  steps", lambda f: f"{f.steps}"),
    ("  in real seconds", lambda f: f"{f.wall_seconds:.1f}"),
)


def table(runs: Sequence[Figures]) -> str:
    """Figures side by side, and below them who refused what."""
    lines = [["", *(run.name for run in runs)]]
    lines += [[label, *(told(run) for run in runs)] for label, told in ROWS]
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    text = ["  ".join(_padded(line, widths)).rstrip() for line in lines]
    text.insert(1, "-" * (sum(widths) + 2 * len(runs)))
    for run in runs:
        text += [f"{run.name} refused {n} requests ({why})" for why, n in run.refusals.items()]
    return "\n".join(text)


def _padded(line: list[str], widths: list[int]) -> list[str]:
    """Labels to the left, figures to the right."""
    figures = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
    return [line[0].ljust(widths[0]), *figures]


def _at(values: Spread | None, name: str) -> str:
    return "-" if values is None else f"{getattr(values, name):.3f}"
