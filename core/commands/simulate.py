"""Run a trace through real scheduling, memory and admission, on imagined hardware."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import EnginebayError
from .options import stack_of

if TYPE_CHECKING:
    from enginebay.simulation.candidate import Candidate
    from enginebay.simulation.trace import Call

BOUNDS = {
    "blocks": ("num_blocks", "KV blocks"),
    "seats": ("max_sequences", "sequences that may run at a time"),
    "step-tokens": ("max_step_tokens", "positions that one step may compute"),
    "block-size": ("block_size", "tokens of a KV block"),
    "max-model-len": ("max_model_len", "prompt and output tokens of a sequence"),
    "swap-blocks": ("num_swap_blocks", "KV blocks that host memory holds"),
}
"""Options that replace a bound of every stack, by their names."""

STEPS = 100_000
"""Of a soak, where nobody says how many."""
OF_A_SOAK = {
    "steps": "a made-up load is as long as --trace poisson:seconds=60 says",
    "seed": "a made-up load takes it as --trace poisson:seed=4",
    "keep": "figures are written by --json and --html",
}
"""Options that only a soak reads, and where a comparison has the like."""
OF_BOTH = ("soak", "replay", "schedulers", "allocators")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    what = parser.add_argument_group("what is compared")
    what.add_argument(
        "--stack", action="append", help="a shipped stack or a file; may be repeated (default: cpu)"
    )
    what.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of each stack"
    )
    what.add_argument("--schedulers", metavar="A,B", help="each stack once with each of these")
    what.add_argument("--allocators", metavar="A,B", help="likewise")
    for option, (name, meaning) in BOUNDS.items():
        what.add_argument(f"--{option}", dest=name, type=int, help=f"{meaning}, in every stack")
    _configure_load(parser)
    out = parser.add_argument_group("what is shown")
    out.add_argument("--slo-ttft", type=float, default=1.0, help="seconds (default: 1)")
    out.add_argument("--slo-itl", type=float, default=0.1, help="mean seconds (default: 0.1)")
    out.add_argument("--json", metavar="FILE", help="write the figures there")
    out.add_argument("--html", metavar="FILE", help="write a page with the step-by-step picture")
    soak = parser.add_argument_group("soak: random worlds in which every rule must hold")
    soak.add_argument(
        "--soak",
        action="store_true",
        help="run them instead of a trace, with --schedulers and --allocators, or all that ship",
    )
    soak.add_argument("--steps", type=int, help=f"of all worlds (default: {STEPS})")
    soak.add_argument("--seed", type=int, help="of the first world (default: 0)")
    soak.add_argument("--replay", metavar="FILE", help="run one stored world")
    soak.add_argument(
        "--keep",
        metavar="FILE",
        default="enginebay-soak.json",
        help="where a failing world is stored (default: enginebay-soak.json)",
    )


def _configure_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("the load")
    load.add_argument(
        "--trace",
        help="a .jsonl or .csv file, or poisson:, steady: or burst: with key=value,... "
        "(default: poisson)",
    )
    load.add_argument("--scale-time", type=float, default=1.0, help="2 halves the rate")
    load.add_argument("--scale-lengths", type=float, default=1.0)
    load.add_argument("--limit", type=int, default=0, help="the first calls of a trace; 0: all")
    load.add_argument("--cost", default="", metavar="KEY=SECONDS,...", help="step, token, ...")
    load.add_argument("--fit", default="", metavar="TOKENS:SECONDS,TOKENS:SECONDS")


def run(options: argparse.Namespace) -> int:
    """Compare; or soak, and exit with 1 when a rule was broken."""
    from .terminal import quiet_logs

    quiet_logs("error")
    _refuse_idle_options(options)
    if options.replay:
        from enginebay.simulation.soak_command import replay

        return replay(options.replay)
    if options.soak:
        return _soak(options)
    return _compare(options)


def _refuse_idle_options(options: argparse.Namespace) -> None:
    """:raises EnginebayError: an option was given that would do nothing; says what would"""
    parser = argparse.ArgumentParser()
    configure(parser)
    plain = vars(parser.parse_args([]))
    given = [name for name, value in plain.items() if getattr(options, name) != value]
    flags = {name: option for option, (name, _) in BOUNDS.items()}
    for name in given:
        flag = f"--{flags.get(name, name.replace('_', '-'))}"
        if options.replay and name not in ("soak", "replay"):
            raise EnginebayError(f"{flag} does nothing with --replay: the stored world has it all")
        if options.soak and name not in (*OF_BOTH, *OF_A_SOAK):
            raise EnginebayError(
                f"{flag} does nothing with --soak, which draws its own worlds; a soak takes "
                "--steps, --seed, --keep, --schedulers and --allocators"
            )
        if not options.soak and not options.replay and name in OF_A_SOAK:
            raise EnginebayError(f"{flag} does nothing without --soak; {OF_A_SOAK[name]}")


def _soak(options: argparse.Namespace) -> int:
    from enginebay.simulation.soak_command import soak

    steps = STEPS if options.steps is None else options.steps
    if steps < 1:
        raise EnginebayError(f"--steps {steps}: a soak takes 1 step or more")
    _require_writable(options.keep)
    chosen = map(_names, (options.schedulers, options.allocators))
    return soak(steps, options.seed or 0, options.keep, *chosen)


def _compare(options: argparse.Namespace) -> int:
    from enginebay.simulation.cost import parse_cost
    from enginebay.simulation.figures import Objective, figures
    from enginebay.simulation.page import page
    from enginebay.simulation.play import play
    from enginebay.simulation.table import table

    for path in filter(None, (options.json, options.html)):
        _require_writable(path)
    cost = parse_cost(options.cost, options.fit)
    calls = _calls(options)
    objective = Objective(ttft=options.slo_ttft, itl=options.slo_itl)
    candidates = _candidates(options, calls)
    seconds, tokens = calls[-1].time, sum(c.prompt_tokens for c in calls)
    answers = sum(c.n * c.output_tokens for c in calls)
    asked = f"{len(calls)} requests in {seconds:.1f} s, {tokens} prompt and {answers} output tokens"
    facts = [
        f"trace   {options.trace or 'poisson'}: {asked}",
        f"cost    {cost}",
        f"good    TTFT up to {objective.ttft:g} s, mean ITL up to {objective.itl:g} s",
        *(f"limits  {text}" for text in dict.fromkeys(_told(c) for c in candidates)),
    ]
    print("\n".join(facts), flush=True)
    runs = [play(candidate, calls, cost) for candidate in candidates]
    told = [figures(played, objective) for played in runs]
    print(f"\n{table(told)}")
    if options.json:
        _write(options.json, _json(facts, told))
    if options.html:
        _write(options.html, page(facts, runs, told))
    return 0


def _calls(options: argparse.Namespace) -> list[Call]:
    from enginebay.simulation.synthetic import load
    from enginebay.simulation.trace import rescaled

    return rescaled(
        load(options.trace or "poisson"),
        time=options.scale_time,
        lengths=options.scale_lengths,
        limit=options.limit,
    )


def _candidates(options: argparse.Namespace, calls: list[Call]) -> list[Candidate]:
    """Every stack with every scheduler and allocator that was named."""
    from enginebay.simulation.candidate import candidate, limits_of

    bounds = {name for name, _ in BOUNDS.values()}
    changes = {n: v for n, v in vars(options).items() if n in bounds and v is not None}
    stacks = options.stack or ["cpu"]
    found = []
    for reference in stacks:
        for scheduler in _names(options.schedulers) or [""]:
            for allocator in _names(options.allocators) or [""]:
                slots = {"scheduler": scheduler, "allocator": allocator}
                given = argparse.Namespace(
                    stack=reference, set=options.set, model=None, offline=False
                )
                stack = stack_of(given, **{slot: use for slot, use in slots.items() if use})
                names = [Path(reference).stem] if len(stacks) > 1 or not any(slots.values()) else []
                name = "/".join([*names, *filter(None, slots.values())])
                found.append(candidate(name, stack, limits_of(stack, calls, changes)))
    return found


def _names(text: str | None) -> list[str]:
    return text.split(",") if text else []


def _told(candidate: Candidate) -> str:
    limits = candidate.limits
    return (
        f"{limits.num_blocks} blocks of {limits.block_size} tokens, "
        f"{limits.num_swap_blocks} in host memory; {limits.max_sequences} seats, "
        f"{limits.max_step_tokens} tokens a step, {limits.max_model_len} a sequence"
    )


def _json(facts: list[str], told: list[Any]) -> str:
    import msgspec

    return json.dumps({"facts": facts, "runs": msgspec.to_builtins(told)}, indent=2) + "\n"


def _require_writable(path: str) -> None:
    """Tell before the runs, not after them. :raises EnginebayError: nothing can be written"""
    file = Path(path)
    if file.is_dir():
        raise EnginebayError(f"{path!r} can't be written: it is a folder; name a file")
    if not file.parent.is_dir():
        raise EnginebayError(f"{path!r} can't be written: there is no folder {str(file.parent)!r}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise EnginebayError(f"{path!r} can't be written: it is not allowed; name another place")


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as error:
        raise EnginebayError(f"{path!r} can't be written: {error}") from error
    print(f"wrote {path}")
