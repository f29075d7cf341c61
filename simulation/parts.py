"""Parts: the installed policies that the soak puts together, with options to draw from."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from enginebay.errors import StackError
from enginebay.hookspecs.admission import Admission, AdmissionContext
from enginebay.hookspecs.allocator import Allocator, AllocatorContext
from enginebay.hookspecs.families import FAMILIES, SLOTS
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import Scheduler, SchedulerContext
from enginebay.registry import Registry, discover
from enginebay.stack import Entry

DISTRIBUTION: Final = "enginebay"
DRAWN: Final[dict[str, tuple[Any, ...]]] = {
    "preemption": ("recompute", "swap", "cheapest"),
    "max_chunk": (3, 16, 256),
    "batch_size": (2, 8),
}
"""Options that are drawn where a plugin has them."""
TIGHT: Final[dict[str, dict[str, Any]]] = {
    "bounded-queue": {"max_waiting": 6},
    "kv-budget": {"mode": "guaranteed"},
}
"""Options under which an admission plugin has something to refuse."""
DOOR: Final = ("bounded-queue",)
"""Those that stand in the door chain; all others stand in the budget chain."""

MakeScheduler = Callable[[Limits, dict[str, Any]], Scheduler]
MakeAllocator = Callable[[Limits, dict[str, Any]], Allocator]


@dataclass
class Parts:
    """Names to draw from, and how to build what they name."""

    schedulers: list[str]
    allocators: list[str]
    door: list[str] = field(default_factory=list)
    budget: list[str] = field(default_factory=list)
    made_schedulers: dict[str, MakeScheduler] = field(default_factory=dict)
    """Of names that no plugin has: how to make them. Mutants are put in so."""
    made_allocators: dict[str, MakeAllocator] = field(default_factory=dict)
    registry: Registry = field(default_factory=Registry)

    def scheduler(self, name: str, limits: Limits, options: dict[str, Any]) -> Scheduler:
        """Build one."""
        if name in self.made_schedulers:
            return self.made_schedulers[name](limits, options)
        built: Scheduler = self._build("scheduler", name, options, SchedulerContext(limits=limits))
        return built

    def allocator(self, name: str, limits: Limits, options: dict[str, Any]) -> Allocator:
        """Build one, over an empty pool."""
        if name in self.made_allocators:
            return self.made_allocators[name](limits, options)
        context = AllocatorContext(
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            max_model_len=limits.max_model_len,
        )
        built: Allocator = self._build("allocator", name, options, context)
        return built

    def admission(self, slot: str, name: str, limits: Limits) -> Admission:
        """Build one member of a chain."""
        context = AdmissionContext(name=name, limits=limits)
        built: Admission = self._build(slot, name, TIGHT.get(name, {}), context)
        return built

    def random_options(self, slot: str, name: str, noise: random.Random) -> dict[str, Any]:
        """Values for the options that are drawn, as far as the plugin has them."""
        drawn = {option: noise.choice(values) for option, values in DRAWN.items()}
        if name in self.made_schedulers or name in self.made_allocators:
            return drawn
        known = self.registry.load(SLOTS[slot], name).Options.__struct_fields__
        return {option: value for option, value in drawn.items() if option in known}

    def _build(self, slot: str, name: str, options: dict[str, Any], context: object) -> Any:
        entry = Entry(slot=slot, use=name, name=name, options=options)
        return self.registry.build(SLOTS[slot], entry, context)


def shipped() -> Parts:
    """The policies that ship. Admission plugins that need options to be built are left out."""
    names = {family: _names(family) for family in ("scheduler", "allocator", "admission")}
    parts = Parts(schedulers=names["scheduler"], allocators=names["allocator"])
    limits = Limits(
        max_model_len=24, max_step_tokens=4, max_sequences=1, block_size=4, num_blocks=8
    )
    for name in names["admission"]:
        slot = "door" if name in DOOR else "budget"
        try:
            parts.admission(slot, name, limits)
        except StackError:
            continue
        (parts.door if slot == "door" else parts.budget).append(name)
    return parts


def _names(family: str) -> list[str]:
    found = discover(FAMILIES[family])
    return [plugin.name for plugin in found if plugin.distribution == DISTRIBUTION]
