"""Checks of a stack's memory: every storage on one line of the ledger (P6)."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Final

import msgspec

from enginebay.flow import SamplingParams
from enginebay.hookspecs.executor import Accounting
from enginebay.ledger.audit import audit, live
from enginebay.ledger.table import size
from enginebay.llm import LLM

from .check import CheckList, Skip, require

if TYPE_CHECKING:
    from enginebay.stack import Stack

MEMORY_CHECKS: Final = CheckList()
_POOL: Final = 64
"""Blocks: the books are the same whatever the pool's size, and this one is made fast."""


@MEMORY_CHECKS.add("memory/one-owner")
def every_storage_stands_on_one_line(given: tuple[Stack, int]) -> str:
    """Each tensor storage is on exactly one ledger line, as planned to the byte (P6)."""
    stack = _small(given[0])
    before = live()
    llm = LLM(stack=stack)
    try:
        executor = llm.assembly.executor
        if not isinstance(executor, Accounting):
            reason = "its executor does not name its storages (no holdings())"
            raise Skip(reason)
        prompts = [[1 + number] * 20 for number in range(4)]
        llm.generate(prompts, SamplingParams(max_tokens=8, ignore_eos=True, seed=0))
        found = audit(before, executor.holdings())
        for wrong in (*found.unowned, *found.doubled, *found.gone):
            require(False, "memory/one-owner", wrong)
        for name in ("weights", "kv", "swap"):
            planned, held = executor.plan.line(name).planned, found.bytes_by_line.get(name, 0)
            told = f"line {name}: {planned} bytes were planned, {held} are held"
            require(planned == held, "memory/one-owner", told)
        return ", ".join(f"{name} {size(held)}" for name, held in found.bytes_by_line.items())
    finally:
        llm.close()
        del llm
        gc.collect()


def _small(stack: Stack) -> Stack:
    engine = msgspec.structs.replace(
        stack.engine, num_blocks=_POOL, max_sequences=8, swap_memory="8MiB"
    )
    return msgspec.structs.replace(stack, engine=engine).without("transports", "observers")
