"""Show what each slot of a stack chose, and why others declined."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from ..hookspecs.families import SLOTS
from .options import add_stack, stack_of

if TYPE_CHECKING:
    from ..assembly import Assembly


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("name", nargs="?", help="the stack; as --stack")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_stack(parser)


def run(options: argparse.Namespace) -> int:
    """Build the stack, so that what is shown is what would run."""
    options.stack = options.name or options.stack
    stack = stack_of(options)  # before torch is loaded: a mistake is told at once
    from ..assembly import assemble
    from .terminal import progress_bar, quiet_logs

    quiet_logs()
    with progress_bar() as progress:
        assembly = assemble(stack, progress)
    facts = explained(assembly)
    print(json.dumps(facts, indent=2) if options.json else _text(facts))
    return 0


def explained(assembly: Assembly) -> dict[str, Any]:
    """Slots, kernels and their reasons, limits and memory, as plain data."""
    loaded = assembly.registry.loaded
    slots = {}
    for slot, entries in assembly.stack.slots.items():
        chosen = []
        for entry in entries:
            found = loaded[SLOTS[slot].name, entry.use][0]
            version = f"{found.distribution} {found.version}"
            chosen.append({"name": entry.name, "plugin": entry.use, "from": version})
            if entry.options:
                chosen[-1]["options"] = entry.options  # type: ignore[assignment]
        slots[slot] = chosen
    return {**assembly.engine.info, "slots": slots, "kernels": _kernels(assembly)}


def _kernels(assembly: Assembly) -> list[dict[str, Any]]:
    return [
        {
            "op": choice.signature.op,
            "scheme": choice.signature.scheme,
            "sizes": dict(choice.signature.sizes),
            "kernel": f"{choice.plugin}/{choice.offer.name}",
            "row_invariant": choice.offer.row_invariant,
            "declined": [f"{name} {reason}" for name, reason in choice.declined],
        }
        for choice in assembly.table.choices.values()
    ]


def _text(facts: dict[str, Any]) -> str:
    lines = [
        f"stack {facts['stack']}, model {facts['model']} ({facts['architecture']})",
        f"from {facts['origin']}",
        f"service version {facts['service_version']}",
        "",
        "slots",
    ]
    for slot, chosen in facts["slots"].items():
        names = ", ".join(
            c["name"] if c["name"] == c["plugin"] else f"{c['name']} ({c['plugin']})"
            for c in chosen
        )
        origins = sorted({entry["from"] for entry in chosen})
        lines.append(f"  {slot:12} {names or '-'}  [{', '.join(origins)}]")
    lines += ["", "kernels"]
    for kernel in facts["kernels"]:
        sizes = " ".join(f"{name}={size}" for name, size in kernel["sizes"].items())
        mark = "row-invariant" if kernel["row_invariant"] else "not row-invariant"
        scheme = f" {kernel['scheme']}" if kernel["scheme"] else ""
        lines.append(f"  {kernel['op']}{scheme} {sizes}: {kernel['kernel']}, {mark}")
        lines += [f"    declined: {reason}" for reason in kernel["declined"]]
    invariant = "yes" if facts["row_invariant"] else "no"
    lines += ["", f"the whole stack row-invariant: {invariant}", "", "limits"]
    lines += [f"  {name:16} {value}" for name, value in facts["limits"].items()]
    lines += ["", "memory (bytes)"]
    lines += [f"  {name:16} {value:,}" for name, value in facts["memory"].items()]
    return "\n".join(lines)


def _label(entry: dict[str, Any]) -> str:
    plugin = "" if entry["name"] == entry["plugin"] else f" ({entry['plugin']})"
    options = ", ".join(f"{name}={value!r}" for name, value in entry.get("options", {}).items())
    return f"{entry['name']}{plugin}{f' ({options})' if options else ''}"
