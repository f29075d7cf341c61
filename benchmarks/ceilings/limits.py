"""What this machine can do at most: bytes and multiply-adds a second, by measurement.

Bandwidth is the rate of reading (sums) and of copying (bytes read and bytes written
count both) over working sets from 64 KiB to several times the last cache. Multiply-adds
run on registers alone, in enough independent chains to hide the latency. All of it runs
on the thread pool of the CPU kernels, as their work does.

Of several runs the fastest counts: other processes only ever slow a run down.
"""

import ctypes
import math
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from enginebay.plugins.kernels.cpu_jit import Task
from enginebay.plugins.kernels.cpu_lanes import WIDTH, splat, total
from enginebay.plugins.kernels.cpu_memory import floats, load, longs, store
from enginebay.plugins.kernels.cpu_pool import Pool

from .chains import CHAINS, INT_MEANS, PRODUCTS, float_chains, int_chains

KIB, MIB = 2**10, 2**20
CHUNK = MIB
"""Bytes that a thread takes at a time."""
LONG_WORK = 10**9
"""Nanoseconds: enough that the pool wakes its helpers."""
ZERO = np.float32(0.0)
TURNS = 20_000
"""Multiply-adds of each chain in one item of work."""


@dataclass(frozen=True)
class Limits:
    """The ceilings of one machine with so many threads."""

    threads: int
    rates: tuple[tuple[int, float, float], ...]
    """(working set in bytes, bytes a second read, bytes a second copied), ascending"""
    float_macs: float
    """float32 multiply-adds a second"""
    int_macs: float
    """int8 multiply-adds into int32 a second"""
    int_means: str
    """The instruction that they were measured with."""

    def best(self, other: "Limits") -> "Limits":
        """The higher of two measurements of one machine, limit by limit."""
        pairs = zip(self.rates, other.rates, strict=True)
        return Limits(
            threads=self.threads,
            rates=tuple((a[0], max(a[1], b[1]), max(a[2], b[2])) for a, b in pairs),
            float_macs=max(self.float_macs, other.float_macs),
            int_macs=max(self.int_macs, other.int_macs),
            int_means=self.int_means,
        )

    def bandwidth(self, size: int) -> float:
        """Bytes a second at a working set of ``size`` bytes, read or copied, whichever is
        faster; between two measured sizes by the logarithm."""
        sizes = [each for each, _, _ in self.rates]
        best = [max(read, copied) for _, read, copied in self.rates]
        place = bisect_left(sizes, size)
        if place == 0:
            return best[0]
        if place == len(sizes):
            return best[-1]
        low, high = sizes[place - 1], sizes[place]
        share = math.log(size / low) / math.log(high / low)
        return best[place - 1] + share * (best[place] - best[place - 1])


def _sum(arguments: int, item: int, slot: int) -> None:
    """Read chunk ``item`` (around and around) and leave its sum."""
    w = longs(arguments)
    x = floats(w[0] + 4 * w[2] * (item % w[3]))
    a, b, c, d = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    e, f, g, h = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    for at in range(0, w[2], 128):
        a = a + load(x, at)
        b = b + load(x, at + 16)
        c = c + load(x, at + 32)
        d = d + load(x, at + 48)
        e = e + load(x, at + 64)
        f = f + load(x, at + 80)
        g = g + load(x, at + 96)
        h = h + load(x, at + 112)
    floats(w[1])[16 * slot] = total((a + b) + (c + d) + ((e + f) + (g + h)))


def _copy(arguments: int, item: int, slot: int) -> None:
    """Copy chunk ``item`` (around and around) of the buffer's first half to its second."""
    w = longs(arguments)
    x = floats(w[0] + 4 * w[2] * (item % w[3]))
    out = floats(w[0] + 4 * w[2] * (w[3] + item % w[3]))
    for at in range(0, w[2], 64):
        store(out, at, load(x, at))
        store(out, at + 16, load(x, at + 16))
        store(out, at + 32, load(x, at + 32))
        store(out, at + 48, load(x, at + 48))


def _floats(arguments: int, item: int, slot: int) -> None:
    w = longs(arguments)
    float_chains(w[2], floats(w[1] + 4096 * slot))


def _ints(arguments: int, item: int, slot: int) -> None:
    w = longs(arguments)
    int_chains(w[2], floats(w[1] + 4096 * slot))


SUM, COPY, FLOATS, INTEGERS = Task(_sum), Task(_copy), Task(_floats), Task(_ints)


def measure(threads: int, rounds: int = 5, last_cache: int | None = None) -> Limits:
    """Measure all limits with ``threads`` threads; takes about a second.

    :param last_cache: bytes of the largest cache; ``None``: as the system tells
    """
    pool = Pool(threads)
    scratch = np.ones(1024 * threads + 16, dtype=np.float32)
    largest = min(max(4 * (last_cache or cache_size()), 32 * MIB), 1024 * MIB)
    buffer = np.ones(2 * largest // 4, dtype=np.float32)
    sizes = [64 * KIB]
    while 4 * sizes[-1] < largest:
        sizes.append(4 * sizes[-1])
    rates = tuple(
        (size, *_rates(pool, buffer, scratch, size, rounds)) for size in (*sizes, largest)
    )
    products = CHAINS * TURNS
    return Limits(
        threads=threads,
        rates=rates,
        float_macs=_chain_rate(pool, FLOATS, scratch, rounds) * products * WIDTH,
        int_macs=_chain_rate(pool, INTEGERS, scratch, rounds) * products * PRODUCTS[INT_MEANS],
        int_means=INT_MEANS,
    )


def _rates(
    pool: Pool, buffer: "np.ndarray[Any, Any]", scratch: Any, size: int, rounds: int
) -> tuple[float, float]:
    """Bytes a second (read, copied) in a working set of ``size`` bytes."""
    chunk = min(size // 4, CHUNK)
    passes = max(1, 16 * MIB // size)
    found = []
    for task, chunks, moved in ((SUM, size // chunk, chunk), (COPY, size // chunk // 2, 2 * chunk)):
        words = (buffer.ctypes.data, scratch.ctypes.data, chunk // 4, chunks)
        items = passes * chunks
        found.append(_fastest(pool, task, words, items, rounds) * items * moved)
    return found[0], found[1]


def _chain_rate(pool: Pool, task: Task, scratch: Any, rounds: int) -> float:
    """Items a second."""
    items = 16 * pool.threads
    words = (0, scratch.ctypes.data, TURNS, 0)
    return _fastest(pool, task, words, items, rounds) * items


def _fastest(pool: Pool, task: Task, words: Sequence[int], items: int, rounds: int) -> float:
    """1 / the seconds of the fastest of some runs; the first only fills the caches."""
    block = (ctypes.c_int64 * 4)(*words)
    seconds = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        pool.run(task, ctypes.addressof(block), items, LONG_WORK)
        seconds.append(time.perf_counter() - began)
    return 1.0 / min(seconds[1:])


def cache_size(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Bytes of the largest cache, 32 MiB where the system doesn't tell."""
    units = {"K": KIB, "M": MIB}
    found = []
    for each in root.glob("index*/size"):
        text = each.read_text().strip()
        if text[-1:] in units and text[:-1].isdecimal():
            found.append(int(text[:-1]) * units[text[-1]])
    return max(found, default=32 * MIB)
