"""What a run prints: the machine, the engines, medians and ratios."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

QUIET = 0.1
"""Cores; more than this in other hands, and a figure says more of them than of the engine."""
WIDTH = 150
SAME = "same tokens: those before the first that differs from enginebay's in float32"


def show(report: Mapping[str, Any], console: Console | None = None) -> None:
    """Print a report, as ``__main__.report`` makes it."""
    console = console or Console()
    if console.width < WIDTH and not console.is_terminal:
        console = Console(width=WIDTH, file=console.file)
    console.print(_header(report), highlight=False)
    points = [point["name"] for point in report["points"]]
    console.print(_engines(report))
    console.print(SAME, highlight=False)
    console.print(_medians(report, points))
    console.print(_disturbance(report), highlight=False)
    if report["ratios"]:
        console.print(_ratios(report, points))
    for name, why in report["left_out"].items():
        console.print(f"left out: {name}: {why}", highlight=False, markup=False)


def _header(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    features = " ".join(machine["features"]) or "no vector extensions of note"
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {features}; {machine['memory']}\n"
        f"{machine['system']}; {machine['date']}; load {machine['load_average']:.2f}\n"
        f"model {report['model']}, {report['way']}; {report['threads']} threads each; "
        f"{report['rounds_done']} of {report['rounds']} rounds; greedy, seed {report['seed']}, "
        "fresh prompts each round, prefix caches off"
    )


def _engines(report: Mapping[str, Any]) -> Table:
    table = Table(title="engines", title_justify="left")
    for column in ("engine", "version", "weights", "kv", "threads", "same tokens"):
        table.add_column(column)
    for name, facts in report["engines"].items():
        same = report["agreement"].get(name)
        told = "" if same is None else f"{100 * same:.0f} %"
        row = (facts[key] for key in ("version", "weights", "kv"))
        table.add_row(name, *row, str(facts["threads"]), told)
    return table


def _medians(report: Mapping[str, Any], points: Sequence[str]) -> Table:
    table = Table(title="tokens/s, medians", title_justify="left")
    table.add_column("engine")
    for point in points:
        table.add_column(point, justify="right", no_wrap=True)
    for name, figures in report["medians"].items():
        cells = [f"{figures[p]['median']:,.1f}" if p in figures else "-" for p in points]
        table.add_row(name, *cells)
    return table


def _ratios(report: Mapping[str, Any], points: Sequence[str]) -> Table:
    table = Table(title="ratios of medians, by class of weights", title_justify="left")
    table.add_column("stack")
    table.add_column("against")
    for point in points:
        table.add_column(point, justify="right")
    for ratio in report["ratios"]:
        whom = ratio.get("whom", {})
        cells = []
        for point in points:
            quotient = ratio["points"].get(point)
            name = f" {whom[point]}" if point in whom else ""
            cells.append("-" if quotient is None else f"{quotient:.2f}x{name}")
        table.add_row(ratio["stack"], ratio["against"], *cells, end_section=bool(whom))
    return table


def _disturbance(report: Mapping[str, Any]) -> str:
    """Where the machine was not this run's alone, it says so."""
    loads = [each["others"] for by in report["medians"].values() for each in by.values()]
    worst = max(loads, default=0.0)
    if worst <= QUIET:
        return f"at most {worst:.2f} cores were busy with anything else"
    return f"NOT QUIET: up to {worst:.2f} cores were busy with something else; take it again"
