"""Memory: the plan held against what the process really takes, line by line.

    python -m benchmarks.memory [--model M] [--requests 24] [--tokens 64] [--set KEY=VALUE]

What is compared is ``RssAnon`` of this process: pages of its own that are in memory. Not
``VmSize`` (promised, perhaps never touched) and not ``VmRSS`` (which also counts pages of
mapped files: libraries, and the checkpoint while it is read. The system takes those back
when it needs to; they have a line of their own here). It is read once every plugin was
imported and nothing was loaded yet, then again and again under load; its median there is
the steady state. What no line explains is the residual. Exit status 1 above 5 %.
"""

import argparse
import json
import statistics
import sys
import threading
import time

from enginebay import LLM, SamplingParams
from enginebay.ledger.books import Books
from enginebay.ledger.process import resident
from enginebay.ledger.table import columns

MIB = 2**20
MOST = 0.05
"""How far the process may be from the plan (P6)."""


def main() -> int:
    """Load, serve, compare, print."""
    options = _options()
    changes = dict(item.split("=", 1) for item in options.set)
    _, files_before = resident()
    began = time.perf_counter()
    llm = LLM(options.model, stack=options.stack, overrides=changes)
    ready = time.perf_counter() - began
    executor = llm.assembly.executor
    at_rest, _ = resident()
    under_load, readings = _serve(llm, options.requests, options.tokens)
    files = resident()[1]
    ledger = llm.client.snapshot().ledger
    llm.close()
    steady = int(statistics.median(under_load))
    planned = executor.plan.total
    growth = steady - executor.before_load
    held = ledger["reserved"]
    apart = (growth - planned) / planned
    facts = {
        "model": llm.assembly.name,
        "stack": llm.assembly.stack.name,
        "ready_seconds": round(ready, 2),
        "seconds": {name: round(value, 2) for name, value in llm.assembly.seconds.items()},
        "planned_bytes": planned,
        "growth_bytes": growth,
        "growth_over_plan": round(apart, 4),
        "residual_bytes": growth - held,
        "peak_growth_bytes": max(under_load) - executor.before_load,
        "at_rest_growth_bytes": at_rest - executor.before_load,
        "mapped_files_growth_bytes": files - files_before,
        "reading_the_ledger_microseconds": round(1e6 * statistics.median(readings)),
    }
    if options.json:
        print(json.dumps({**facts, "ledger": ledger}, indent=2))
        return int(abs(apart) > MOST)
    rows = [
        (line["name"], *(f"{line[kind] / MIB:.2f}" for kind in ("planned", "reserved")),
         f"{line['allocated'] / MIB:.2f}")
        for line in ledger["lines"]
    ]  # fmt: skip
    rows += [
        ("sum", f"{planned / MIB:.2f}", f"{held / MIB:.2f}", ""),
        ("process", "", f"{growth / MIB:.2f}", f"{100 * apart:+.2f} %"),
        ("residual", "", f"{(growth - held) / MIB:.2f}", ""),
        ("mapped files", "", f"{(files - files_before) / MIB:.2f}", ""),
    ]
    print(columns(("MiB", "planned", "reserved", "allocated"), rows))
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    return int(abs(apart) > MOST)


def _serve(llm: LLM, requests: int, tokens: int) -> tuple[list[int], list[float]]:
    """Answer requests. :return: own bytes of the process meanwhile, processor seconds of
    reading the ledger under load"""
    seen: list[int] = []
    took: list[float] = []
    books = Books(llm.assembly.engine)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            seen.append(resident()[0])
            began = time.thread_time()
            books.read()
            took.append(time.thread_time() - began)

    watcher = threading.Thread(target=watch)
    watcher.start()
    prompts = [
        f"Request {number}: tell me about the year {1900 + number}." for number in range(requests)
    ]
    try:
        llm.generate(prompts, SamplingParams(max_tokens=tokens, ignore_eos=True, seed=0))
    finally:
        done.set()
        watcher.join()
    return seen, took


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="default: the stack's")
    parser.add_argument("--stack", default="cpu")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
