"""The pool: every item once, from several engines, helpers that leave; and compiled code."""

import gc
import platform
import threading
import time

import numba
import numpy as np
import pytest

from enginebay.plugins.kernels import cpu_pool
from enginebay.plugins.kernels.cpu_attend import ATTEND
from enginebay.plugins.kernels.cpu_jit import TASK_SIGNATURE, Task
from enginebay.plugins.kernels.cpu_memory import longs
from enginebay.plugins.kernels.cpu_pool import Pool


def _count(arguments: int, item: int, slot: int) -> None:
    """Count the runs of each item, and remember the highest slot."""
    words = longs(arguments)
    words[1 + item] += 1
    if slot >= words[0]:
        words[0] = slot


COUNT = Task(_count)
LONG_WORK = 10 * cpu_pool.SHORT


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("work", [0, LONG_WORK])
def test_every_item_runs_exactly_once(threads, work):
    """On the quick path, alone and together, for jobs of every size."""
    pool = Pool(threads)
    for items in (0, 1, 2, 3, 50):
        words = np.zeros(60, dtype=np.int64)
        pool.run(COUNT, words.ctypes.data, items, work)
        assert words[1 : 1 + items].tolist() == [1] * items
        assert words[1 + items :].sum() == 0
        assert words[0] < threads


def test_job_after_job_leaves_no_item_behind():
    """A helper that wakes late for one job may join the next, but never runs twice."""
    pool = Pool(3)
    words = np.zeros(20, dtype=np.int64)
    for _ in range(2000):
        pool.run(COUNT, words.ctypes.data, 7, LONG_WORK)
    assert words[1:8].tolist() == [2000] * 7


def test_two_engines_in_one_process_do_not_meet():
    """Each has its pool; both run at once."""
    found = []

    def engine():
        pool, words = Pool(2), np.zeros(20, dtype=np.int64)
        for _ in range(300):
            pool.run(COUNT, words.ctypes.data, 7, LONG_WORK)
        found.append(words[1:8].tolist())

    threads = [threading.Thread(target=engine) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[300] * 7] * 2


def test_helpers_leave_with_their_pool():
    """An engine that is closed and forgotten leaves no thread behind."""
    before = set(threading.enumerate())
    pool = Pool(3)
    pool.warm_up()
    helpers = set(threading.enumerate()) - before
    assert len(helpers) == 2
    del pool
    gc.collect()
    deadline = time.monotonic() + 20
    while any(helper.is_alive() for helper in helpers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(helper.is_alive() for helper in helpers)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks at x86 registers")
def test_attention_is_compiled_to_wide_fused_multiply_adds():
    """The hot loops use 256-bit registers at least, and call no exp of the C library."""
    # Compiled anew: numba can't show the assembly of code that it loaded from its cache.
    compiled = numba.cfunc(TASK_SIGNATURE, error_model="numpy")(ATTEND.function)
    assembly = compiled._library.get_asm_str()
    if "vfmadd" not in assembly:
        pytest.skip("this CPU has no fused multiply-add")
    wide = [line for line in assembly.splitlines() if "vfmadd" in line and "%xmm" not in line]
    assert len(wide) > 100
    assert "exp" not in {line.split()[-1] for line in assembly.splitlines() if "call" in line}
