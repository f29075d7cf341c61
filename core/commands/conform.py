"""Judge a stack or a plugin by the conformance suite."""

import argparse
import sys
from pathlib import Path

import msgspec

from enginebay.conformance.report import Report, line
from enginebay.conformance.suite import Task, entry_of, plan_plugin, plan_stack
from enginebay.conformance.suite import run as run_tasks

from ..assembly import assemble
from ..errors import StackError
from ..probe import probe
from .options import add_stack, stack_of
from .terminal import progress_bar, quiet_logs


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_stack(parser)
    parser.add_argument(
        "--plugin", metavar="FAMILY:NAME", help="judge one plugin, e.g. scheduler:chunked"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--list", action="store_true", help="name the checks and run none")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PREFIX",
        help="checks whose id begins so, e.g. parity; may be repeated",
    )
    parser.add_argument(
        "--positions", type=int, default=128, help="of the parity checks (default: 128)"
    )
    parser.add_argument(
        "--record-probe",
        metavar="FILE",
        help="store the stack's answer to the readiness probe, and check nothing",
    )


def run(options: argparse.Namespace) -> int:
    """Run the checks. Exit status 1 when one fails, 2 when none was chosen."""
    quiet_logs("error")
    if options.record_probe:
        return _record(options)
    planned = plan_plugin(entry_of(options.plugin)) if options.plugin else _stack_tasks(options)
    wanted = tuple(options.only)
    tasks = [task for task in planned if not wanted or task.check.id.startswith(wanted)]
    if options.list:
        for task in tasks:
            print(f"{task.check.id:48} {task.subject}: {task.check.says}")
        return 0
    if not tasks:
        raise StackError(f"no check begins with {', '.join(wanted)}; --list names them")
    report = Report()
    subject = ""
    for result in run_tasks(tasks):
        report.results.append(result)
        if options.json:
            continue
        if result.subject != subject:
            subject = result.subject
            print(f"{subject}")
        print(f"  {line(result)}", flush=True)
    print(report.json() if options.json else report.summary())
    return 1 if report.failed else 0


def _stack_tasks(options: argparse.Namespace) -> list[Task]:
    return plan_stack(stack_of(options), options.positions)


def _record(options: argparse.Namespace) -> int:
    stack = stack_of(options)
    unchecked = msgspec.structs.replace(stack.engine, probe_record="", require_validation=False)
    with progress_bar() as progress:
        assembly = assemble(
            msgspec.structs.replace(stack, engine=unchecked).without("transports", "sinks"),
            progress,
        )
    record = probe(assembly)
    data = msgspec.json.format(msgspec.json.encode(record), indent=2)
    Path(options.record_probe).write_bytes(data + b"\n")
    print(f"recorded {list(record.token_ids)} in {options.record_probe}", file=sys.stderr)
    return 0
