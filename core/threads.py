"""One setting for every compute thread of the process, made before the first is started.

The choice, in this order: what the caller asks for, the user's ``OMP_NUM_THREADS``, or
the physical cores that the process may use (affinity and cgroup quota; a second
hardware thread of a core adds nothing to matrix products).

Waiting is passive. OpenMP threads that spin at a barrier beside any other busy thread
take turns with it by whole time slices: measured with torch on two cores, a product of
0.6 ms took 9 to 24 ms on two spinning threads, and 0.8 ms on two that sleep (0.6 to
0.8 ms is also what a quiet machine takes: at such sizes one core is fed by memory).
libgomp reads its policy when torch is loaded, so ``wait_passively`` must run before;
importing this module does it and imports nothing heavy.

torch keeps its own OpenMP threads for matrix products. The CPU kernels bring a pool
that spins as little (``plugins/kernels/cpu_pool``); the step thread uses one or the
other, never both at once, so ``count`` threads are busy at most. numba's own parallel
loops, should a plugin use them, get the same count.
"""

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from .errors import StackError

CPUS = Path("/sys/devices/system/cpu")
CGROUP = Path("/sys/fs/cgroup")
MOST_THREADS = 1024
"""More than any machine has cores for; a hundred thousand end the process unheard."""


@dataclass(frozen=True)
class Threads:
    """How many threads compute, and why."""

    count: int
    reason: str
    """One line for people: ``enginebay explain`` prints it."""


def wait_passively() -> None:
    """Let idle OpenMP threads sleep, unless the user's environment says otherwise."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KMP_BLOCKTIME", "0")


_LOADED_BEFORE = "torch" in sys.modules
"""torch was there first: its waiting is as the environment was then."""
wait_passively()


def configure_threads(requested: int = 0) -> int:
    """Choose the number of threads and set it everywhere. Call it before any computing.

    :param requested: the stack's ``threads``; 0 leaves the choice to the machine
    :return: the number
    :raises StackError: ``requested`` is negative
    """
    count = choose_threads(requested).count
    os.environ.setdefault("NUMBA_NUM_THREADS", str(count))
    import torch

    torch.set_num_threads(count)
    return count


def choose_threads(requested: int = 0) -> Threads:
    """The number of threads and the reason, without setting anything.

    :raises StackError: ``requested`` is negative, or more than ``MOST_THREADS``
    """
    if not 0 <= requested <= MOST_THREADS:
        msg = f"engine.threads = {requested}: must be 1 to {MOST_THREADS}; 0 uses every core"
        raise StackError(msg)
    if requested:
        threads = Threads(requested, f"{requested}: threads = {requested} in the stack")
    else:
        threads = _from_environment() or _from_machine()
    if _LOADED_BEFORE and threads.count > 1:
        note = "; torch was loaded before enginebay.threads, so its threads may spin"
        return Threads(threads.count, threads.reason + note)
    return threads


def _from_environment() -> Threads | None:
    """``OMP_NUM_THREADS``, whose first number counts when it lists several levels."""
    value = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if value.isdecimal() and int(value) > 0:
        return Threads(int(value), f"{value}: OMP_NUM_THREADS")
    return None


def _from_machine() -> Threads:
    cpus = os.sched_getaffinity(0)
    cores = physical_cores(cpus)
    quota = cgroup_quota()
    reason = f"{cores} physical cores for the {len(cpus)} CPUs of this process"
    if quota is not None and quota < cores:
        count = max(1, math.floor(quota))
        return Threads(count, f"{count}: cgroup quota of {quota:g} CPUs ({reason})")
    return Threads(cores, f"{cores}: {reason}")


def physical_cores(cpus: set[int], root: Path = CPUS) -> int:
    """Cores behind logical CPUs; a CPU without topology counts as a core.

    :param root: where Linux describes them
    """
    cores = set()
    for cpu in cpus:
        siblings = root / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            cores.add(f"{cpu}")
    return max(1, len(cores))


def cgroup_quota(root: Path = CGROUP) -> float | None:
    """CPUs' worth of time that the process may use, or ``None`` without a limit.

    :param root: where cgroups are mounted; version 2 first, then version 1
    """
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except OSError:
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    return None if quota in {"max", "-1"} else int(quota) / int(period)
