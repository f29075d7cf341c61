"""Whether a plan fits the machine, asked before anything is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..errors import CapacityError
from .process import available
from .table import plan_table, size

if TYPE_CHECKING:
    from .lines import Plan


def check_room(plan: Plan, device: str) -> None:
    """Refuse a plan that is larger than the memory which can be had now: the system
    would promise it, and end the process when it is used.

    :raises CapacityError: shows the plan, names its largest adjustable line and the fix
    """
    room = _room(device)
    taken = plan.line("host").planned if torch.device(device).type == "cpu" else 0
    needed = plan.total - taken
    if room is None or needed <= room:
        return
    others = needed - plan.line("kv").planned
    fix = (
        f"lower engine.num_blocks or set engine.kv_memory to {(room - others) // 2**20}MiB or less"
        if room > others + plan.block_bytes
        else "take a smaller model or dtype, a smaller engine.swap_memory, or more memory"
    )
    worst = "kv" if room > others else "weights"
    msg = (
        f"load: line {worst} does not fit: {size(needed)} are needed, {size(room)} of "
        f"device {device!r} can be had; {fix}\n{plan_table(plan)}"
    )
    raise CapacityError(msg)


def _room(device: str) -> int | None:
    if torch.device(device).type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return available()
