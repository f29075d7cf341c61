"""The suite: picks the checks that apply to a stack or to one plugin, and runs them.

A family's own checks get a factory that builds the plugin with the stack's options; the
sampler chain, parity and invariance judge the stack as a whole.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from structlog.testing import capture_logs

from enginebay.engine import Engine
from enginebay.errors import EnginebayError
from enginebay.hookspecs.allocator import AllocatorContext
from enginebay.hookspecs.client import ClientContext, EngineClient
from enginebay.hookspecs.detokenizer import DetokenizerContext
from enginebay.hookspecs.families import FAMILIES, SLOTS
from enginebay.hookspecs.kernel import KernelContext
from enginebay.hookspecs.scheduler import SchedulerContext
from enginebay.registry import Registry
from enginebay.stack import Entry, Stack

from .admission_checks import ADMISSION_CHECKS
from .allocator_checks import ALLOCATOR_CHECKS
from .check import Check, Skip
from .client_checks import CLIENT_CHECKS
from .client_stage import MakeStage, imagined_stage
from .encoded_client import EncodedClient
from .frontend_checks import FRONTEND_CHECKS
from .kernel_checks import KERNEL_CHECKS
from .memory_checks import MEMORY_CHECKS
from .report import Report, Result
from .scheduler_checks import SCHEDULER_CHECKS
from .stack_checks import STACK_CHECKS
from .text_checks import DETOKENIZER_CHECKS

CHECKS = {
    "admission": ADMISSION_CHECKS,
    "allocator": ALLOCATOR_CHECKS,
    "scheduler": SCHEDULER_CHECKS,
    "client": CLIENT_CHECKS,
    "kernel": KERNEL_CHECKS,
    "detokenizer": DETOKENIZER_CHECKS,
    "frontend": FRONTEND_CHECKS,
}
"""Families with checks for a plugin by itself."""


@dataclass(frozen=True)
class Task:
    """One check with what it judges."""

    check: Check
    subject: str
    given: Callable[[], Any]
    """Makes what the check takes; called when its turn comes."""


def plan_stack(stack: Stack, num_positions: int = 128) -> list[Task]:
    """Every check that applies to what stands in a stack's slots, then to the whole."""
    tasks = []
    registry = Registry()
    for slot, entries in stack.slots.items():
        for entry in entries:
            if SLOTS[slot].name in CHECKS:
                tasks += plan_plugin(entry, registry)
    whole = f"stack {stack.name}"
    return tasks + [
        Task(check, whole, partial(_stack_subject, stack, num_positions))
        for check in (*STACK_CHECKS, *MEMORY_CHECKS)
    ]


def plan_plugin(entry: Entry, registry: Registry | None = None) -> list[Task]:
    """The checks of one plugin by itself.

    :raises PluginError: it can't be loaded, or its family has no checks yet
    """
    registry = registry or Registry()
    family = SLOTS[entry.slot]
    if family.name not in CHECKS:
        known = ", ".join(sorted(CHECKS))
        msg = f"there are no checks for the {family.name} family yet; there are for {known}"
        raise EnginebayError(msg)
    registry.load(family, entry.use)
    found = registry.loaded[family.name, entry.use][0]
    subject = f"{entry.use} ({found.distribution} {found.version})"
    given = partial(_plugin_subject, registry, entry)
    tasks = [Task(check, subject, given) for check in CHECKS[family.name]]
    if family.name == "client":
        encoded = partial(_encoded_stage, registry, entry)
        told = f"{subject}, through bytes"
        tasks += [Task(check, told, encoded) for check in CLIENT_CHECKS]
    return tasks


def run(tasks: Sequence[Task]) -> Iterator[Result]:
    """Run tasks one after another. A check that crashes has failed."""
    for task in tasks:
        began = time.perf_counter()
        outcome, message = "passed", ""
        try:
            with capture_logs():  # some checks break an engine on purpose, and it says so
                measured = task.check.call(task.given())
            message = measured if isinstance(measured, str) else ""
        except Skip as skip:
            outcome, message = "skipped", str(skip)
        except AssertionError as broken:
            outcome, message = "failed", str(broken) or "an assertion without a message"
        except Exception as error:  # noqa: BLE001 (a crash is a finding about the plugin)
            outcome, message = "failed", f"raised {type(error).__name__}: {error}"
        seconds = time.perf_counter() - began
        yield Result(task.check.id, task.subject, outcome, seconds, message)  # type: ignore[arg-type]


def judge(tasks: Sequence[Task]) -> Report:
    """Run tasks and report."""
    return Report(list(run(tasks)))


def _plugin_subject(registry: Registry, entry: Entry) -> Any:
    """What a family's checks take: mostly a factory."""
    family = SLOTS[entry.slot]
    build = partial(registry.build, family, entry)
    makers: dict[str, Callable[[], Any]] = {
        "admission": lambda: build,
        "allocator": lambda: (
            lambda blocks, size, longest: build(AllocatorContext(blocks, size, longest))
        ),
        "scheduler": lambda: lambda limits: build(SchedulerContext(limits=limits)),
        "client": lambda: imagined_stage(lambda engine: build(ClientContext(engine=engine))),
        "kernel": lambda: build(KernelContext(device="cpu", threads=1)),
        "detokenizer": lambda: lambda text: build(DetokenizerContext(text=text)),
        "frontend": lambda: build,
    }
    return makers[family.name]()


def _encoded_stage(registry: Registry, entry: Entry) -> MakeStage:
    """The same client, with every message as bytes in between."""

    def build(engine: Engine) -> EngineClient:
        context = ClientContext(engine=engine)
        return EncodedClient(registry.build(SLOTS[entry.slot], entry, context))

    return imagined_stage(build)


def _stack_subject(stack: Stack, num_positions: int) -> tuple[Stack, int]:
    return stack, num_positions


def entry_of(family_and_name: str) -> Entry:
    """``scheduler:mine`` -> the entry that a stack would hold.

    :raises EnginebayError: not FAMILY:NAME, or no such family
    """
    family, _, name = family_and_name.partition(":")
    if family not in FAMILIES or not name:
        msg = f"{family_and_name!r} is not FAMILY:NAME; families: {', '.join(FAMILIES)}"
        raise EnginebayError(msg)
    return Entry(slot=FAMILIES[family].slots[0], use=name, name=name)
