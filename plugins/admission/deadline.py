"""Admission: what can't be answered before its deadline is refused at once."""

from typing import Final, Literal

import msgspec

from enginebay import hookimpl
from enginebay.flow import Refusal, Usage
from enginebay.hookspecs.admission import AdmissionContext, Ask, Load

from .bounds import require_least, require_order
from .claims import Claims
from .comeback import Comeback

CONTRACT = (1, 0)
NEWEST: Final = 0.1
"""Weight of the newest answer in the mean length."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For either chain; in ``budget`` the lengths are known. Judges only requests that
    carry a deadline."""

    counts: Literal["start", "mean", "longest"] = "mean"
    """What must be possible before the deadline: the first token; an answer as long as
    those of late were on average; or one of ``max_tokens``."""
    least_seconds: float = 0.0
    """What even an idle engine needs; a shorter deadline is refused for good (400)."""
    retry_after: float = 1.0
    """Seconds told to a refused caller at least."""
    max_retry_after: float = 60.0
    """The longest estimate, in seconds; up to half as much more is told."""


class Deadline:
    """Refuses (503) what would still wait, or compute, when its answer is worthless.

    The wait for a seat is estimated twice: by the place in the queue and the requests that
    end in a second, and by the prompt tokens that wait and those computed in a second. The
    smaller one counts, an unknown one counts as nothing: it is better to let one in that is
    cut at its deadline than to turn away one that had time. The time in a seat is what
    those who run together take at that pace (Little's law), for as many tokens as count.
    First come, first served is assumed. Who would be alone is always let in: the pace that
    spoke against it may be of other requests than there are now.
    """

    def __init__(self, name: str, options: Options) -> None:
        self._name = name
        self._options = options
        self._choices = Claims()
        self._mean = 0.0
        """Tokens of a choice's answer, of late."""
        self._comeback = Comeback(options.retry_after, options.max_retry_after)

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        refusal = None if ask.deadline is None else self._judge(ask, load, ask.deadline)
        if refusal is None:
            self._choices.add(ask.request_id, ask.n)
        return refusal

    def settle(self, request_id: str, usage: Usage) -> None:
        """Learn how long answers are."""
        length = usage.completion_tokens / max(self._choices.of(request_id), 1)
        self._mean += NEWEST * (length - self._mean) if self._mean else length

    def release(self, request_id: str) -> None:
        self._choices.drop(request_id)

    def _judge(self, ask: Ask, load: Load, deadline: float) -> Refusal | None:
        if deadline < self._options.least_seconds:
            return self._never(deadline)
        left = ask.arrival + deadline - load.now
        needed = self._wait(ask, load) + self._work(ask, load)
        alone = load.num_running + load.num_waiting == 0
        if left > 0 and (alone or needed <= left):
            return None
        wait = self._comeback.after(ask, needed - deadline)
        return Refusal(
            plugin=self._name,
            reason="deadline_unreachable",
            kind="server",
            message=(
                f"the deadline is {max(left, 0.0):.3g} seconds away and about {needed:.3g} are "
                f"needed to reach this request. Try again in {wait:g} seconds"
            ),
            limit=round(max(left, 0.0), 3),
            current=round(needed, 3),
            retry_after=wait,
        )

    def _wait(self, ask: Ask, load: Load) -> float:
        """Seconds until the last of its choices starts."""
        if not load.num_waiting and load.num_running + ask.n <= load.num_seats:
            return 0.0
        place = (load.num_waiting + ask.n) / self._choices.mean
        by_place = _seconds(place, load.requests_per_second)
        prompts = load.waiting_tokens + (ask.num_prompt_tokens or 0)
        by_prompts = _seconds(prompts, load.prompt_tokens_per_second)
        known = [seconds for seconds in (by_place, by_prompts) if seconds > 0]
        return min(known, default=0.0)

    def _work(self, ask: Ask, load: Load) -> float:
        """Seconds in a seat, beside those who run then, until what counts is there."""
        if self._options.counts == "start" or not self._mean:
            return 0.0
        longest = self._mean if ask.max_tokens is None else ask.max_tokens
        tokens = longest if self._options.counts == "longest" else min(longest, self._mean)
        running = min(load.num_running + ask.n, max(load.num_seats, ask.n))
        mean = _seconds(running / self._choices.mean, load.requests_per_second)
        return mean * tokens / self._mean

    def _never(self, deadline: float) -> Refusal:
        least = self._options.least_seconds
        return Refusal(
            plugin=self._name,
            reason="deadline_too_short",
            kind="invalid",
            message=f"the deadline is {deadline:g} seconds; no answer takes less than {least:g}",
            limit=least,
            current=deadline,
            param="deadline",
        )


def _seconds(amount: float, pace: float) -> float:
    return amount / pace if pace > 0 else 0.0


@hookimpl
def enginebay_admission(options: Options, context: AdmissionContext) -> Deadline:
    """Build it."""
    require_least(context, options, 0, "least_seconds", "retry_after")
    require_order(context, options, ("retry_after", "max_retry_after"))
    return Deadline(context.name, options)
