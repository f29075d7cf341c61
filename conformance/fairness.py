"""Fairness, measured from outside a policy: what tenants were served, and how far apart.

Service is what VTC counts (Sheng et al., Fairness in Serving Large Language Models, OSDI
2024; arXiv 2401.00588): prompt positions computed and tokens generated, each at its
price, by weight; a position computed again counts once.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from enginebay.flow import StepPlan, StepResult
from enginebay.hookspecs.model import Limits
from enginebay.sequence import State

from .harness import Harness

INPUT_PRICE: Final = 1.0
OUTPUT_PRICE: Final = 2.0


def vtc_bound(
    limits: Limits,
    *,
    longest_prompt: int,
    longest: int,
    input_price: float = INPUT_PRICE,
    output_price: float = OUTPUT_PRICE,
    least_weight: float = 1.0,
) -> float:
    """Theorem 4.4 of VTC: while two tenants are backlogged all along, their service in any
    interval differs by at most ``2 * max(wp * Linput, wq * M)``.

    M is the largest batch in tokens. It is taken as every seat with a sequence of the
    greatest length, since here a seat is not reserved for in advance. With weights,
    service is per weight, so the least weight scales the bound.

    :param longest: tokens of the longest sequence, prompt and answer
    """
    batch = limits.max_sequences * longest
    return 2 * max(input_price * longest_prompt, output_price * batch) / least_weight


class ServiceMeter:
    """Counts what a harness's executor did for each tenant. Make it before the first turn."""

    def __init__(
        self,
        harness: Harness,
        *,
        input_price: float = INPUT_PRICE,
        output_price: float = OUTPUT_PRICE,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.served: defaultdict[str, float] = defaultdict(float)
        """Priced tokens by weight, since the beginning."""
        self._harness = harness
        self._prices = (input_price, output_price)
        self._weights = weights or {}
        self._owners: dict[int, tuple[str, int]] = {}
        """Tenant and prompt length of each sequence, by id."""
        self._computed: dict[int, int] = {}
        """Prompt positions of each sequence that were computed, or came from a cache."""
        executor: Any = harness.executor
        self._collect = executor.collect
        executor.collect = self._listen

    def backlogged(self) -> set[str]:
        """Tenants of whom somebody waits now."""
        sequences = self._harness.roster.sequences.values()
        return {s.tenant for s in sequences if s.state is State.WAITING}

    def _listen(self, handle: Any) -> StepResult:
        result: StepResult = self._collect(handle)
        self._count(handle.plan, result)
        return result

    def _count(self, plan: StepPlan, result: StepResult) -> None:
        for start in plan.started:
            tenant = self._harness.answers.of[start.request_id].request.tenant
            self._owners[start.sequence_id] = (tenant, start.num_prompt)
        for span in plan.spans:
            tenant, num_prompt = self._owners[span.sequence_id]
            before = self._computed.setdefault(span.sequence_id, min(span.start, num_prompt))
            end = min(span.start + span.num_tokens, num_prompt)
            self._computed[span.sequence_id] = max(before, end)
            self._serve(tenant, max(end - before, 0) * self._prices[0])
        for output in result.outputs:
            tenant, _ = self._owners[output.sequence_id]
            self._serve(tenant, len(output.token_ids) * self._prices[1])

    def _serve(self, tenant: str, amount: float) -> None:
        self.served[tenant] += amount / self._weights.get(tenant, 1.0)


class GapWatch:
    """The difference of two tenants' service, while both are backlogged all along."""

    def __init__(self, meter: ServiceMeter, first: str, second: str) -> None:
        self.gap = 0.0
        """The most by which the difference has changed in any interval so far."""
        self.num_steps = 0
        """Steps in which both were backlogged."""
        self._meter = meter
        self._pair = (first, second)
        self._extremes: tuple[float, float] | None = None

    def look(self) -> float:
        """After each turn. :return: the gap of the intervals that end here"""
        first, second = self._pair
        if not {first, second} <= self._meter.backlogged():
            self._extremes = None
            return 0.0
        apart = self._meter.served[first] - self._meter.served[second]
        low, high = self._extremes or (apart, apart)
        self._extremes = min(low, apart), max(high, apart)
        self.num_steps += 1
        here = max(apart - self._extremes[0], self._extremes[1] - apart)
        self.gap = max(self.gap, here)
        return here
