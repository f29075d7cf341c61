"""List the installed plugins."""

import argparse
import json
import subprocess
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from ..config import load_stack
from ..hookspecs.families import FAMILIES
from ..registry import Found, discover
from ..stack import DEFAULT

_LOAD = (
    "import sys; from enginebay.registry import Registry; "
    "from enginebay.hookspecs.families import FAMILIES; "
    "Registry().load(FAMILIES[sys.argv[1]], sys.argv[2])"
)
IMPORT_SECONDS = 60.0
"""A plugin that takes longer to import is reported as failed."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--family", choices=sorted(FAMILIES), help="only this family")
    parser.add_argument("--stack", default=DEFAULT, help="whose choices to mark as active")
    parser.add_argument(
        "--import",
        dest="load",
        action="store_true",
        help="import and validate each one, in a process of its own",
    )


def run(options: argparse.Namespace) -> int:
    """List; with ``--import`` exit with 1 when one does not load."""
    stack = load_stack(options.stack)
    active = {(entry.slot, entry.use) for entries in stack.slots.values() for entry in entries}
    found = discover(FAMILIES[options.family] if options.family else None)
    rows = [_row(plugin, active) for plugin in found]
    if options.load:
        for row, plugin in zip(rows, found, strict=True):
            row["problem"] = _problem(plugin)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        _print(rows)
    return 1 if any(row.get("problem") for row in rows) else 0


def _row(plugin: Found, active: set[tuple[str, str]]) -> dict[str, Any]:
    family = FAMILIES[plugin.family]
    return {
        "family": plugin.family,
        "slots": ", ".join(family.slots),
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "contract": ".".join(map(str, family.version)),
        "active": any((slot, plugin.name) in active for slot in family.slots),
        "module": plugin.module,
    }


def _problem(plugin: Found) -> str:
    """Why it does not load; empty when it does. Its process can't harm this one."""
    command = [sys.executable, "-c", _LOAD, plugin.family, plugin.name]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"did not finish importing within {IMPORT_SECONDS:.0f} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return lines[-1].removeprefix("enginebay.errors.PluginError: ")


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    columns = ["family", "slots", "name", "distribution", "version", "contract", "active"]
    columns += ["problem"] if any("problem" in row for row in rows) else []
    for column in columns:
        table.add_column(column)
    for row in rows:
        shown = {**row, "active": "yes" if row["active"] else ""}
        table.add_row(*(str(shown[column]) for column in columns))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
