"""Show what each slot of a stack chose, and why others declined."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from .options import add_stack, stack_of

if TYPE_CHECKING:
    from ..stack import Stack


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("name", nargs="?", help="the stack; as --stack")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--load",
        action="store_true",
        help="load the weights and build everything; by default the load is rehearsed",
    )
    add_stack(parser)


def run(options: argparse.Namespace) -> int:
    """Prepare the stack, or build it, so that what is shown is what would run."""
    options.stack = options.name or options.stack
    stack = stack_of(options)  # before torch is loaded: a mistake is told at once
    facts = _loaded(stack) if options.load else _prepared(stack)
    print(json.dumps(facts, indent=2) if options.json else _text(facts))
    return 0


def _prepared(stack: Stack) -> dict[str, Any]:
    from ..assembler import Assembler
    from ..explanation import of_prepared
    from ..preparation import prepare
    from .terminal import progress_bar, quiet_logs

    quiet_logs()
    with progress_bar() as progress:
        build = Assembler(stack, progress)
        return of_prepared(build, prepare(build, to_run=False))


def _loaded(stack: Stack) -> dict[str, Any]:
    from ..assembly import assemble
    from ..explanation import of_loaded
    from .terminal import progress_bar, quiet_logs

    quiet_logs()
    with progress_bar() as progress:
        return of_loaded(assemble(stack, progress))


def _text(facts: dict[str, Any]) -> str:
    invariant = "yes" if facts["row_invariant"] else "no"
    kind = "memory (bytes)" if facts["loaded"] else "memory (bytes, planned)"
    lines = [
        f"stack {facts['stack']}, model {facts['model']} ({facts['architecture']})",
        f"from {facts['origin']}",
        f"service version {facts['service_version']}",
        *("", "slots", *_slots(facts["slots"])),
        *("", "numbers", *_quantization(facts["quantization"])),
        *("", "kernels", *_kernels(facts["kernels"])),
        *("", f"the whole stack row-invariant: {invariant}"),
        *("", "limits", *(f"  {name:16} {value}" for name, value in facts["limits"].items())),
        *("", kind, *(f"  {name:16} {value:,}" for name, value in facts["memory"].items())),
    ]
    return "\n".join(lines)


def _slots(slots: dict[str, list[dict[str, Any]]]) -> list[str]:
    lines = []
    for slot, chosen in slots.items():
        origins = sorted({entry["from"] for entry in chosen})
        told = f"[{', '.join(origins)}]" if origins else ""
        lines.append(f"  {slot:12} {', '.join(map(_label, chosen)) or '-'}  {told}".rstrip())
    return lines


def _label(entry: dict[str, Any]) -> str:
    """``name (plugin; option = value)``: what differs from its default name and options."""
    plugin = "" if entry["name"] == entry["plugin"] else entry["plugin"]
    options = ", ".join(f"{name} = {entry['options'][name]!r}" for name in entry["set"])
    told = "; ".join(filter(None, (plugin, options)))
    return f"{entry['name']} ({told})" if told else str(entry["name"])


def _quantization(told: dict[str, Any]) -> list[str]:
    lines = []
    for each in told["decisions"]:
        sizes = f"{each['num_bytes']:,} bytes" if each["num_bytes"] else ""
        scales = f"{each['metadata_bytes']:,} of scales beside" if each["metadata_bytes"] else ""
        facts = ", ".join(filter(None, (each["choice"], sizes, scales)))
        lines.append(f"  {each['what']:12} {facts}{'; ' if each['note'] else ''}{each['note']}")
    if told["copies"]:
        lines.append(f"  {'kept twice':12} {told['copies']}")
    report = told["report"] or {}
    if report.get("calibration"):
        lines.append(f"  {'calibration':12} {report['calibration']}")
    for name, reason in (report.get("float_layers") or {}).items():
        lines.append(f"  {'in float':12} {name}: {reason}")
    return lines


def _kernels(kernels: list[dict[str, Any]]) -> list[str]:
    lines = []
    for kernel in kernels:
        sizes = " ".join(f"{name}={size}" for name, size in kernel["sizes"].items())
        words = [kernel["op"], kernel["scheme"], sizes, " ".join(kernel["features"])]
        mark = "row-invariant" if kernel["row_invariant"] else "not row-invariant"
        joined = f", joined from {' and '.join(kernel['parts'])}" if kernel["parts"] else ""
        lines.append(f"  {' '.join(filter(None, words))}: {kernel['kernel']}, {mark}{joined}")
        lines += [f"    declined: {reason}" for reason in kernel["declined"]]
    return lines
