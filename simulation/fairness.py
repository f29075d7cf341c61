"""Fairness: how far tenants' service drifts apart while they all want more.

Service is counted as in VTC (Sheng et al., Fairness in Serving Large Language Models;
arXiv 2401.00588): an input token 1, an output token 2, each once, however often it is
computed.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

INPUT_PRICE: Final = 1.0
OUTPUT_PRICE: Final = 2.0
MOST_TENANTS: Final = 16
"""Pairs are followed among the first so many tenants that were served or waited."""


@dataclass
class Stretch:
    """A time in which two tenants both waited: the extremes of their difference."""

    low: float
    high: float


@dataclass
class Fairness:
    """Told of each step's service and of who was backlogged in it."""

    service: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Of each tenant, since the start."""
    gap: float = 0.0
    """The most by which the difference of two tenants' service changed while both were
    backlogged all along."""
    _known: list[str] = field(default_factory=list)
    _backlogged: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds in which each tenant was backlogged beside another."""
    _rated: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Service in those seconds."""
    _stretches: dict[tuple[str, str], Stretch] = field(default_factory=dict)

    def step(self, seconds: float, served: dict[str, float], backlogged: set[str]) -> None:
        """:param served: service of this step by tenant
        :param backlogged: tenants of whom somebody waited while it ran
        """
        for tenant in sorted(backlogged | served.keys()):
            if tenant not in self._known and len(self._known) < MOST_TENANTS:
                self._known.append(tenant)
        able = [tenant for tenant in self._known if tenant in backlogged]
        pairs = set(combinations(able, 2))
        for pair in self._stretches.keys() - pairs:
            del self._stretches[pair]
        for pair in pairs - self._stretches.keys():
            apart = self._apart(pair)
            self._stretches[pair] = Stretch(apart, apart)
        for tenant, amount in served.items():
            self.service[tenant] += amount
        if len(able) > 1:
            for tenant in able:
                self._backlogged[tenant] += seconds
                self._rated[tenant] += served.get(tenant, 0.0)
        for pair, stretch in self._stretches.items():
            apart = self._apart(pair)
            stretch.low, stretch.high = min(stretch.low, apart), max(stretch.high, apart)
            self.gap = max(self.gap, stretch.high - stretch.low)

    @property
    def jain(self) -> float | None:
        """Jain's index of the tenants' service per second while they were backlogged
        beside another: 1 is even, 1/tenants is all to one; ``None``: it never was so."""
        rates = [self._rated[t] / s for t, s in self._backlogged.items() if s > 0]
        squares = sum(rate * rate for rate in rates)
        return sum(rates) ** 2 / (len(rates) * squares) if squares else None

    def _apart(self, pair: tuple[str, str]) -> float:
        return self.service[pair[0]] - self.service[pair[1]]
