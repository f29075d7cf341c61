"""Admission: the queue has an end, in choices and in prompt tokens."""

import math

import msgspec

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.flow import Refusal
from enginebay.hookspecs.admission import AdmissionContext, Ask, Load

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For either chain. An empty queue takes any request, so none is refused for ever."""

    max_waiting: int = 256
    """Choices that may wait for their start; a request with ``n`` choices counts as
    ``n``. 0: no bound."""
    max_waiting_tokens: int = 65_536
    """Prompt tokens that may wait; a prompt counts once for each choice. 0: no bound."""
    retry_after: float = 1.0
    """Seconds told to a refused caller while the engine's pace is unknown, and the least
    told at any time."""
    max_retry_after: float = 60.0
    """Seconds told at most."""


class BoundedQueue:
    """Refuses for now (503) what would have to wait behind too much.

    Two counts are kept. ``Load`` says what waits; it may be a moment old, so many
    requests at once could all see a short queue. Their own count, from ``ask`` to
    ``release``, is exact and is held to the engine's seats plus ``max_waiting``.
    """

    def __init__(self, name: str, seats: int, options: Options) -> None:
        self._name = name
        self._seats = seats
        self._options = options
        self._choices: dict[str, int] = {}
        """Of each admitted request."""
        self._held = 0

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        refusal = self._queue(ask, load) or self._tokens(ask, load)
        if refusal is None:
            self._choices[ask.request_id] = ask.n
            self._held += ask.n
        return refusal

    def release(self, request_id: str) -> None:
        self._held -= self._choices.pop(request_id, 0)

    def _queue(self, ask: Ask, load: Load) -> Refusal | None:
        limit = self._options.max_waiting
        waiting = max(load.num_waiting, self._held - self._seats)
        if not limit or waiting <= 0 or waiting + ask.n <= limit:
            return None
        return self._refusal(
            reason="queue_full",
            message=f"{waiting} choices wait already and {ask.n} would join; {limit} may",
            limit=limit,
            current=waiting,
            retry_after=self._retry(waiting + ask.n - limit, load),
        )

    def _tokens(self, ask: Ask, load: Load) -> Refusal | None:
        limit = self._options.max_waiting_tokens
        joining = ask.n * (ask.num_prompt_tokens or 0)
        total = load.waiting_tokens + joining
        if not limit or not load.num_waiting or total < limit or (joining and total == limit):
            return None
        share = (total - limit) / max(load.waiting_tokens, 1) * load.num_waiting
        return self._refusal(
            reason="queue_tokens",
            message=f"{load.waiting_tokens} prompt tokens wait already; {limit} may",
            limit=limit,
            current=load.waiting_tokens,
            retry_after=self._retry(math.ceil(share), load),
        )

    def _refusal(
        self, *, reason: str, message: str, limit: float, current: float, retry_after: float
    ) -> Refusal:
        return Refusal(
            plugin=self._name,
            reason=reason,
            kind="server",
            message=f"the queue is full: {message}. Try again in {retry_after:g} seconds",
            limit=limit,
            current=current,
            retry_after=retry_after,
        )

    def _retry(self, excess: int, load: Load) -> float:
        """Seconds until ``excess`` places more are free, at the pace of late."""
        least, most = self._options.retry_after, self._options.max_retry_after
        if load.requests_per_second <= 0:
            return least
        return min(max(math.ceil(excess / load.requests_per_second), least), most)


@hookimpl
def enginebay_admission(options: Options, context: AdmissionContext) -> BoundedQueue:
    """Build it for the engine's number of seats."""
    for field in ("max_waiting", "max_waiting_tokens", "retry_after"):
        value = getattr(options, field)
        if value < 0:
            msg = f"{context.name}: {field} is {value}; it must be 0 or more"
            raise StackError(msg)
    if options.max_retry_after < options.retry_after:
        msg = (
            f"{context.name}: max_retry_after is {options.max_retry_after}; "
            f"it must not be below retry_after, {options.retry_after}"
        )
        raise StackError(msg)
    return BoundedQueue(context.name, context.limits.max_sequences, options)
