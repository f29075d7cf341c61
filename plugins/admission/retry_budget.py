"""Admission: under load, retries are a bounded share of what is tried for the first time.

Callers that are refused, or give up, try again. When each failed request comes back three
times, a load of 80 % becomes one of 240 %, most of it fails again, and the overload feeds
itself long after its cause is gone. A retry budget breaks the loop: whatever fails, the
retries let in are a small part of the first tries, so the load falls back to what callers
really want. It is the server's side of the budgets that gRPC (A6, retry throttling) and
Finagle keep in their clients.
"""

import math
from typing import Final

import msgspec

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.flow import Refusal
from enginebay.hookspecs.admission import AdmissionContext, Ask, Load

from .bounds import require_least, require_order
from .comeback import Comeback

CONTRACT = (1, 0)
MAX_DOUBLINGS: Final = 6
"""Of the wait that a refused retry is told."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For the ``door`` chain, behind its other members: then the first tries that count
    are those that they let in."""

    share: float = 0.1
    """Retries admitted for each first try of late."""
    min_retries_per_second: float = 0.1
    """Retries admitted at least, so that a quiet server takes some."""
    window: float = 30.0
    """Seconds after which a request has lost most (63 %) of its weight in the counts."""
    retry_after: float = 2.0
    """Seconds told to a refused retry while the engine's pace is unknown, and the
    shortest estimate. Each attempt before doubles the estimate."""
    max_retry_after: float = 120.0
    """The longest estimate, in seconds; up to half as much more is told."""


class RetryBudget:
    """Refuses (503) a retry over the budget while somebody waits; an engine with free
    seats takes any.

    First tries and admitted retries are counted with weights that fade as time passes.
    Two numbers are the whole memory, whoever calls.
    """

    def __init__(self, name: str, options: Options) -> None:
        self._name = name
        self._options = options
        self._first = 0.0
        self._again = 0.0
        self._at = 0.0
        self._comeback = Comeback(options.retry_after, options.max_retry_after)

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        self._fade(load.now)
        if ask.attempt <= 0:
            self._first += 1
            return None
        options = self._options
        limit = options.share * self._first + options.min_retries_per_second * options.window
        if load.num_waiting and self._again + 1 > limit:
            return self._refusal(ask, load, limit)
        self._again += 1
        return None

    def release(self, request_id: str) -> None:
        """Nothing is reserved: what counts is that it was let in."""

    def _fade(self, now: float) -> None:
        if now > self._at:
            kept = math.exp((self._at - now) / self._options.window)
            self._first *= kept
            self._again *= kept
            self._at = now

    def _refusal(self, ask: Ask, load: Load, limit: float) -> Refusal:
        turn = self._comeback.turn(ask, load, 1) * 2 ** min(ask.attempt, MAX_DOUBLINGS)
        wait = min(turn, self._comeback.after(ask, self._options.max_retry_after))
        return Refusal(
            plugin=self._name,
            reason="retry_budget",
            kind="server",
            message=(
                f"the server is busy and takes {limit:.3g} retries in about "
                f"{self._options.window:g} seconds. Try again in {wait:g} seconds"
            ),
            limit=round(limit, 3),
            current=round(self._again, 3),
            retry_after=wait,
        )


@hookimpl
def enginebay_admission(options: Options, context: AdmissionContext) -> RetryBudget:
    """Build it."""
    require_least(context, options, 0, "share", "min_retries_per_second", "retry_after")
    require_order(context, options, ("retry_after", "max_retry_after"))
    if not options.window > 0:
        raise StackError(f"{context.name}: window is {options.window}; it must be above 0")
    return RetryBudget(context.name, options)
