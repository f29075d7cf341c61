"""Runs: marks of one kind that follow each other, folded into sums that keep each time.

A mark appends to compact arrays, at most 20 bytes, and that is all it costs. Marks that
are dropped are summed first, so what a run tells as a whole stays exact.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any, Final, Literal

What = Literal[
    "accepted",
    "admitted",
    "refused",
    "waiting",
    "started",
    "scheduled",
    "prefix_hit",
    "preempted",
    "first_token",
    "token_ready",
    "token_written",
    "finished",
    "released",
]
"""Facts by kind: ``accepted`` (tenant), ``admitted`` (num_prompt_tokens), ``refused``
(plugin, reason), ``waiting`` (reason, index), ``started`` (index), ``scheduled`` (step,
num_tokens, index), ``prefix_hit`` (num_tokens, index), ``preempted`` (by, how, reason,
num_tokens, index), ``first_token`` (index), ``token_ready`` and ``token_written``
(count, index), ``finished`` (index, reason)."""

NO_STEP: Final = -1
AMOUNTS: Final = {
    "waiting": "",
    "scheduled": "num_tokens",
    "token_ready": "count",
    "token_written": "count",
}
"""Kinds that repeat, and the fact that is summed over a run."""


class Run:
    """One run: when it began and was last marked, how often, and how much."""

    __slots__ = (
        "_dropped", "_dropped_amount", "_first", "_first_step", "_last", "_last_step",
        "_longest_gap", "amounts", "facts", "steps", "times", "what",
    )  # fmt: skip

    def __init__(self, what: str, time: float, step: int, facts: dict[str, Any]) -> None:
        """:param facts: what tells this run from others of its kind"""
        self.what = what
        self.facts = facts
        self.times = array("d")
        self.amounts = array("i")
        self.steps = array("q")
        """Empty where marks belong to no step."""
        self._first = self._last = time
        self._first_step = self._last_step = step
        self._dropped = 0
        """Marks no longer in the arrays; the sums below are of those."""
        self._dropped_amount = 0
        self._longest_gap = 0.0

    @property
    def began(self) -> float:
        """When the first mark was made."""
        return self._first

    def drop(self, count: int) -> int:
        """Forget the oldest details. :return: how many there were"""
        times = self.times[:count]
        if not times:
            return 0
        self._dropped += len(times)
        self._dropped_amount += sum(self.amounts[:count])
        self._longest_gap = self._longest(times)
        self._last = times[-1]
        if self.steps:
            self._last_step = self.steps[len(times) - 1]
        del self.times[:count], self.amounts[:count], self.steps[:count]
        return len(times)

    def copy(self) -> Run:
        """As it is now; the original may grow on."""
        other = Run(self.what, self._first, self._first_step, self.facts)
        other.times, other.amounts, other.steps = self.times[:], self.amounts[:], self.steps[:]
        other._last, other._last_step = self._last, self._last_step
        other._dropped, other._dropped_amount = self._dropped, self._dropped_amount
        other._longest_gap = self._longest_gap
        return other

    def event(self) -> dict[str, Any]:
        """As ``Timeline.of`` shows it, without ``ends``."""
        times, marks, unit = self.times, self._dropped + len(self.times), AMOUNTS[self.what]
        event = {"what": self.what, "time": self._first}
        event |= {"until": times[-1] if times else self._last, "marks": marks}
        event |= {**self.facts, "longest_gap": self._longest(times)}
        if unit:
            event[unit] = self._dropped_amount + sum(self.amounts)
        if self._first_step >= 0 and marks == 1:
            event["step"] = self._first_step
        elif self._first_step >= 0:
            last = self.steps[-1] if self.steps else self._last_step
            event |= {"first_step": self._first_step, "last_step": last}
        if times:
            event["times"] = times.tolist()
            event |= {"counts": self.amounts.tolist()} if unit else {}
            event |= {"steps": self.steps.tolist()} if self.steps else {}
        return event

    def _longest(self, times: array[float]) -> float:
        """The longest gap of the dropped marks and of ``times``, which follow them."""
        gaps = [after - before for before, after in pairwise(times)]
        if times and self._dropped:
            gaps.append(times[0] - self._last)
        return max(self._longest_gap, *gaps, 0.0)
