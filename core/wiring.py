"""Wiring: parts that are built become one engine, over a real clock or an imagined one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .blocks import Blocks
from .commit import Commit
from .engine import Engine
from .hookspecs.executor import Swapping
from .rescue import Rescue
from .roster import Roster
from .swap import SwapSpace

if TYPE_CHECKING:
    from collections.abc import Callable

    from .drafting import Drafting
    from .hookspecs.allocator import Allocator
    from .hookspecs.detokenizer import Detokenizer
    from .hookspecs.executor import Executor
    from .hookspecs.model import Limits
    from .hookspecs.scheduler import Scheduler
    from .intake import Intake
    from .meter import Meter
    from .watch import Watch


def wire(
    *,
    intake: Intake,
    scheduler: Scheduler,
    allocator: Allocator,
    executor: Executor,
    detokenizer: Detokenizer,
    watch: Watch,
    meter: Meter,
    drafting: Drafting | None,
    limits: Limits,
    stall_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Engine:
    """Connect an engine's parts; it is not started. ``intake`` asks ``meter`` for the load."""
    swapping = executor if isinstance(executor, Swapping) else None
    blocks = Blocks(
        allocator,
        SwapSpace(limits.num_swap_blocks, limits.block_size),
        block_size=limits.block_size,
        max_step_tokens=limits.max_step_tokens,
        swap_seconds=swapping.swap_seconds if swapping else 0.0,
        pace=lambda: meter.seconds_per_token,
    )
    roster = Roster(
        intake=intake,
        scheduler=scheduler,
        blocks=blocks,
        commit=Commit(detokenizer),
        watch=watch,
        limits=limits,
        stall_seconds=stall_seconds,
        clock=clock,
    )
    meter.engine = Engine(
        intake=intake,
        roster=roster,
        scheduler=scheduler,
        blocks=blocks,
        executor=executor,
        rescue=Rescue(roster, scheduler, limits.num_blocks * limits.block_size),
        watch=watch,
        meter=meter,
        drafting=drafting,
        limits=limits,
        clock=clock,
    )
    return meter.engine
