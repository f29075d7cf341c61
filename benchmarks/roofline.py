"""Roofline: each op of a model and its whole steps, as shares of what the machine can do.

    python -m benchmarks.roofline [--model M] [--stack cpu] [--threads 1,2] [--json]

The machine's limits are measured before and after (``benchmarks/ceilings/limits.py``). An
op's limit is the longest of three times: its weights, keys and values at the bandwidth of
a working set of their size; its activations at the bandwidth of theirs; its multiply-adds
at the rate of the registers. ``share`` is that limit over the time that the op took: 100 %
is as fast as the machine allows. Of several samples the fastest counts, for limits and ops
alike. Ops of single rows are short: what they show is what a call costs.
"""

import argparse
import dataclasses
import gc
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import structlog
import torch
from rich.console import Console
from rich.table import Table

from enginebay.commands.options import add_stack, stack_of
from enginebay.errors import StackError
from enginebay.stack import parse_size

from .ceilings.attention import time_attention
from .ceilings.limits import Limits, measure
from .ceilings.loaded import Loaded, load
from .ceilings.ops import time_linears, time_row_ops
from .ceilings.steps import time_step
from .ceilings.work import Timed
from .peers.machine import describe

ROWS = (1, 4, 16, 512)
CONTEXTS = (64, 2000)
STEPS = ((1, 64, 1), (4, 64, 1), (16, 64, 1), (1, 2000, 1), (1, 512, 512))
"""(sequences, context, rows of each) of the whole steps."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    options = _options(arguments)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    runs = []
    for threads in options.threads:
        limits = measure(threads, options.rounds, options.last_cache)
        loaded = load(stack_of(options, engine__threads=threads))
        with torch.inference_mode():
            timed = list(every(loaded, options.rows, options.rounds))
        limits = limits.best(measure(threads, options.rounds, options.last_cache))
        runs.append((limits, loaded.context.spec.architecture, timed))
        del loaded  # before the next one takes as much memory
        gc.collect()
    if options.json:
        facts = {"model": options.model, "stack": options.stack, "machine": describe()}
        runs_told = [_facts(limits, timed) for limits, _, timed in runs]
        print(json.dumps({**facts, "rounds": options.rounds, "runs": runs_told}, indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else 140)
    for limits, architecture, timed in runs:
        console.print(f"{architecture}, stack {options.stack}, {limits.threads} threads")
        console.print(limits_table(limits))
        console.print(ops_table(limits, timed))


def every(loaded: Loaded, rows: Sequence[int], rounds: int) -> Iterator[Timed]:
    """Everything there is to time."""
    table, recorder = loaded.context.table, loaded.recorder
    spec = loaded.context.spec
    for number in rows:
        yield from time_linears(recorder, table, number, rounds)
        yield from time_row_ops(recorder, table, number, rounds)
    rotary = spec.rope.dim or spec.head_dim
    longest = loaded.context.limits.max_model_len
    for context in sorted({min(context, longest) for context in CONTEXTS}):
        for number in rows:
            yield from time_attention(table, loaded.cache_spec, rotary, number, context, rounds)
    for sequences, context, each in STEPS:
        if context + rounds <= longest:
            yield from time_step(loaded, sequences, context, each, rounds)


def limits_table(limits: Limits) -> Table:
    """The machine's ceilings."""
    table = Table("working set", "read GB/s", "copy GB/s")
    for size, read, copied in limits.rates:
        table.add_row(f"{size / 2**20:g} MiB", f"{read / 1e9:.1f}", f"{copied / 1e9:.1f}")
    table.caption = (
        f"multiply-adds: float32 {limits.float_macs / 1e9:.1f} G/s, "
        f"int8 {limits.int_macs / 1e9:.1f} G/s ({limits.int_means})"
    )
    return table


def ops_table(limits: Limits, timed: Sequence[Timed]) -> Table:
    """One line an op and number of rows."""
    table = Table("op", "kernel")
    for name in ("rows", "us", "KiB", "M multiply-adds", "limit us", "by", "share"):
        table.add_column(name, justify="right")
    for each in timed:
        least, which = each.work.seconds(limits)
        work = each.work
        table.add_row(
            each.op,
            each.kernel,
            f"{each.rows}",
            f"{1e6 * each.seconds:,.1f}",
            f"{(work.memory + work.cached) / 1024:,.0f}",
            f"{(work.float_macs + work.int_macs) / 1e6:,.2f}",
            f"{1e6 * least:,.1f}",
            which,
            f"{100 * least / each.seconds:.0f} %",
        )
    return table


def _facts(limits: Limits, timed: Sequence[Timed]) -> dict[str, Any]:
    ops = []
    for each in timed:
        least, which = each.work.seconds(limits)
        told = dataclasses.asdict(each)
        ops.append({**told, "limit": least, "by": which, "share": least / each.seconds})
    return {"limits": dataclasses.asdict(limits), "ops": ops}


def _numbers(text: str) -> list[int]:
    """``"1,2"`` -> [1, 2]."""
    found = [int(part) for part in text.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text}: every number must be 1 or more")
    return found


def _size(text: str) -> int:
    try:
        return parse_size(text, "--last-cache")
    except StackError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_stack(parser)
    parser.add_argument("--threads", type=_numbers, default=[1], metavar="1,2")
    parser.add_argument("--rows", type=_numbers, default=list(ROWS), metavar="1,4,16,512")
    parser.add_argument("--rounds", type=int, default=5, help="samples; the fastest counts")
    parser.add_argument(
        "--last-cache", type=_size, metavar="32MiB", help="default: as the system tells"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
