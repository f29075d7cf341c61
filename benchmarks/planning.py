"""What it costs to plan a step while very many wait.

    python -m benchmarks.planning [chunked fair ...] [--waiting 100000] [--running 256]

Each scheduling policy plans for the engine's own builder and allocator; the executor is
imagined, so nothing but Python is measured. Requests differ in length, tenant, priority
and deadline, from a pinned seed. A few end in each step and others take their seats.

``plan`` is the policy with builder and allocator, ``step`` the whole turn of the core
without the executor: planning, commit, text, events and timeline.
"""

import argparse
import gc
import logging
import random
import statistics
import time
from importlib.metadata import entry_points

import msgspec
import structlog

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import request_of
from enginebay.hookspecs.families import FAMILIES
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import SchedulerContext
from enginebay.registry import Registry
from enginebay.stack import Entry

SEED = 20_408
GROUP = FAMILIES["scheduler"].group


def main() -> None:
    """Measure and print a line a policy."""
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(f"{options.waiting} waiting, {options.running} running, {options.steps} steps; ms")
    print(f"{'policy':<16}{'plan p50':>9}{'worst':>8}{'step p50':>10}{'worst':>8}{'preempted':>11}")
    for name in options.policies or sorted(entry_points(group=GROUP).names):
        plans, steps, preempted = _measure(name, options)
        row = [f"{name:<16}"]
        row += [f"{statistics.median(plans):>9.2f}{max(plans):>8.2f}"]
        row += [f"{statistics.median(steps):>10.2f}{max(steps):>8.2f}{preempted:>11}"]
        print("".join(row), flush=True)


def _options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policies", nargs="*", help="names of the group; all when none is given")
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200)
    return parser.parse_args()


def _measure(name, options):
    """Milliseconds of each plan and each step, and how many were preempted."""
    limits = Limits(
        max_model_len=4096,
        max_step_tokens=2048,
        max_sequences=options.running,
        block_size=16,
        num_blocks=16 * options.running,
        vocab_size=97,
    )
    harness = Harness(_maker(name, options.running), limits, verify=False)
    noise = random.Random(SEED)
    for number in range(options.waiting + options.running):
        harness.submit(_request(number, noise))
    spans, executed = _stopwatch(harness.scheduler, "plan"), _stopwatch(harness.executor, "execute")
    collected = _stopwatch(harness.executor, "collect")
    gc.collect()
    turns = []
    while len(turns) < options.steps + 20:
        began = time.thread_time()
        harness.turn()
        turns.append(time.thread_time() - began)
    pairs = zip(turns, executed, collected, strict=True)
    steps = [1000 * (turn - there - back) for turn, there, back in pairs]
    preempted = sum(s.num_preemptions for s in harness.roster.sequences.values())
    return [1000 * span for span in spans][20:], steps[20:], preempted


def _request(number, noise):
    return request_of(
        f"r{number}",
        num_prompt=noise.randint(8, 64),
        max_tokens=noise.randint(8, 200),
        tenant=f"tenant-{noise.randrange(16)}",
        priority=noise.randrange(4),
        deadline=noise.choice((None, 600.0, 6000.0)),
    )


def _maker(name, num_running):
    """Build a policy with its defaults; a batch is as large as the engine."""
    registry, family = Registry(), FAMILIES["scheduler"]
    module = registry.load(family, name)
    fields = {field.name for field in msgspec.structs.fields(module.Options)}
    options = {"batch_size": num_running} if "batch_size" in fields else {}
    entry = Entry(slot=family.slots[0], use=name, name=name, options=options)
    return lambda limits: registry.build(family, entry, SchedulerContext(limits=limits))


def _stopwatch(owner, method):
    """Seconds of each call of a method, from now on."""
    call, seconds = getattr(owner, method), []

    def timed(*arguments):
        began = time.thread_time()
        try:
            return call(*arguments)
        finally:
            seconds.append(time.thread_time() - began)

    setattr(owner, method, timed)
    return seconds


if __name__ == "__main__":
    main()
