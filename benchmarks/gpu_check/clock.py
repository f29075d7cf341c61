"""How long work on a device takes."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def seconds(work: Callable[[], Any], rounds: int = 20, spend: float = 1.0) -> float:
    """The median of some runs after three that only warm up; on a GPU between two events,
    otherwise by the clock.

    :param spend: stop early when it took so many seconds
    """
    cuda = torch.cuda.is_available()
    for _ in range(3 if cuda else 1):
        work()
    found: list[float] = []
    until = time.perf_counter() + spend
    while len(found) < (rounds if cuda else 1) and (not found or time.perf_counter() < until):
        found.append(_on_gpu(work) if cuda else _on_cpu(work))
    return statistics.median(found)


def _on_gpu(work: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


def _on_cpu(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
