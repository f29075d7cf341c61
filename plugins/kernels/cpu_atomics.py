"""What threads share: words that several write, semaphores, and calls by address.

As in ``cpu_lanes`` each function is written as the LLVM instructions it becomes; the
builder is not passed by the caller.
"""

import platform
from typing import Any

from numba import types
from numba.core import cgutils

from .cpu_lanes import emitted, ir
from .cpu_memory import LONG

sem_wait = types.ExternalFunction("sem_wait", types.intc(types.intp))
sem_post = types.ExternalFunction("sem_post", types.intc(types.intp))


@emitted(types.int64, types.intp)
def read(builder: Any, address: Any) -> Any:
    """An int64 that other threads write."""
    place = builder.inttoptr(address, LONG.as_pointer())
    return builder.load_atomic(place, "seq_cst", 8)


@emitted(types.void, types.intp, types.int64)
def write(builder: Any, address: Any, value: Any) -> None:
    """Set an int64 that other threads read."""
    place = builder.inttoptr(address, LONG.as_pointer())
    builder.store_atomic(value, place, "seq_cst", 8)


@emitted(types.int64, types.intp, types.int64)
def add(builder: Any, address: Any, value: Any) -> Any:
    """Add to an int64; the value before."""
    place = builder.inttoptr(address, LONG.as_pointer())
    return builder.atomic_rmw("add", place, value, "seq_cst")


@emitted(types.boolean, types.intp, types.int64, types.int64)
def swap(builder: Any, address: Any, expected: Any, value: Any) -> Any:
    """Set an int64 if it still is ``expected``; whether it was."""
    place = builder.inttoptr(address, LONG.as_pointer())
    answer = builder.cmpxchg(place, expected, value, "seq_cst", "seq_cst")
    return builder.extract_value(answer, 1)


@emitted(types.void, types.intp, types.intp, types.intp, types.intp)
def run_item(builder: Any, task: Any, arguments: Any, item: Any, slot: Any) -> None:
    """Call a task by its address."""
    kind = ir.FunctionType(ir.VoidType(), [LONG] * 3)
    builder.call(builder.inttoptr(task, kind.as_pointer()), [arguments, item, slot])


@emitted(types.void)
def rest(builder: Any) -> None:
    """Tell the CPU that this is a waiting loop."""
    if platform.machine() in ("x86_64", "AMD64"):
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(
            cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), []
        )
