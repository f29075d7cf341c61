"""A candidate: a stack's own scheduler, allocator and admission, with bounds, and no model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from enginebay.conformance.traffic import VOCAB_SIZE
from enginebay.errors import StackError
from enginebay.hookspecs.admission import Admission, AdmissionContext
from enginebay.hookspecs.allocator import Allocator, AllocatorContext
from enginebay.hookspecs.families import SLOTS
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import Scheduler, SchedulerContext
from enginebay.registry import Registry
from enginebay.stack import Stack

from .trace import Call

DEFAULT_BLOCKS: Final = 2048
"""KV blocks where the stack leaves their number to a model's size, which is not known here."""
LEAST: Final = {
    "max_model_len": 1,
    "max_step_tokens": 1,
    "max_sequences": 1,
    "block_size": 1,
    "num_blocks": 1,
    "num_swap_blocks": 0,
}


@dataclass(frozen=True)
class Candidate:
    """What is judged. Its plugins are built anew for each run."""

    name: str
    stack: Stack
    limits: Limits
    registry: Registry

    def scheduler(self, limits: Limits) -> Scheduler:
        """The stack's own."""
        built: Scheduler = self._one("scheduler", SchedulerContext(limits=limits))
        return built

    def allocator(self, num_blocks: int, block_size: int) -> Allocator:
        """The stack's own, over an empty pool."""
        context = AllocatorContext(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=self.limits.max_model_len,
        )
        built: Allocator = self._one("allocator", context)
        return built

    def admission(self, slot: str) -> list[tuple[str, Admission]]:
        """The members of the ``door`` or the ``budget`` chain."""
        return [
            (
                entry.name,
                self.registry.build(
                    SLOTS[slot], entry, AdmissionContext(name=entry.name, limits=self.limits)
                ),
            )
            for entry in self.stack.chain(slot)
        ]

    def _one(self, slot: str, context: object) -> Any:
        return self.registry.build(SLOTS[slot], self.stack.one(slot), context)


def candidate(name: str, stack: Stack, limits: Limits) -> Candidate:
    """Build every plugin once, so that a mistake is told before anything runs.

    :raises EnginebayError: a plugin is unknown, or an option of it is wrong
    """
    made = Candidate(name, stack, limits, Registry())
    made.scheduler(limits)
    made.allocator(limits.num_blocks, limits.block_size)
    for slot in ("door", "budget"):
        made.admission(slot)
    return made


def limits_of(stack: Stack, calls: Sequence[Call], changes: dict[str, int]) -> Limits:
    """A stack's bounds without a model.

    :param changes: bounds by name that replace the stack's
    :raises StackError: a bound under which nothing could be computed
    """
    engine = stack.engine
    longest = max((c.prompt_tokens + max(c.output_tokens, c.max_tokens) for c in calls), default=1)
    limits = Limits(
        max_model_len=engine.max_model_len or longest,
        max_step_tokens=engine.max_step_tokens,
        max_sequences=engine.max_sequences,
        block_size=engine.block_size,
        num_blocks=engine.num_blocks or DEFAULT_BLOCKS,
        vocab_size=VOCAB_SIZE,
    )
    limits = msgspec.structs.replace(limits, **changes)
    for name, least in LEAST.items():
        if getattr(limits, name) < least:
            raise StackError(f"{name} = {getattr(limits, name)}: must be {least} or more")
    return limits
