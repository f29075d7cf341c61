"""Tallies: counters and histograms cheap enough for every step.

``prometheus_client`` walks a histogram's buckets in Python at every observation; with
one observation a sequence a step that is too much for the step thread. These find the
bucket by bisection and are turned into Prometheus families when somebody reads them.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from math import inf, isinf

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

MAX_LABELS = 200
"""Label combinations of one counter; more are counted as ``other``."""


class Histogram:
    """Observations by bucket; the last bucket has no upper bound."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """:param bounds: upper bounds, ascending, each belonging to its bucket"""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, *values: float) -> None:
        for value in values:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def family(self, name: str, doc: str, labels: dict[str, str]) -> HistogramMetricFamily:
        """Cumulative, as Prometheus wants it."""
        total = 0
        buckets = []
        for bound, count in zip((*self._bounds, inf), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if isinf(bound) else repr(float(bound)), total))
        family = HistogramMetricFamily(name, doc, labels=list(labels))
        family.add_metric(list(labels.values()), buckets=buckets, sum_value=self._sum)
        return family


class Counter:
    """Sums by the values of its own labels; bounded in their number."""

    __slots__ = ("_labels", "_sums")

    def __init__(self, *labels: str, known: tuple[tuple[str, ...], ...] = ()) -> None:
        """:param known: values of the labels that are shown from the start"""
        self._labels = labels
        self._sums: dict[tuple[str, ...], float] = dict.fromkeys(known if labels else ((),), 0)

    def add(self, amount: float, *values: str) -> None:
        if values not in self._sums and len(self._sums) >= MAX_LABELS:
            values = ("other",) * len(self._labels)
        self._sums[values] = self._sums.get(values, 0) + amount

    def family(self, name: str, doc: str, labels: dict[str, str]) -> CounterMetricFamily:
        family = CounterMetricFamily(name, doc, labels=[*labels, *self._labels])
        for values, amount in self._sums.items():
            family.add_metric([*labels.values(), *values], amount)
        return family


def ascending(bounds: Iterable[float]) -> bool:
    """Whether bounds can be a histogram's: at least one, each above the one before."""
    ordered = list(bounds)
    return bool(ordered) and all(a < b for a, b in pairwise(ordered))
