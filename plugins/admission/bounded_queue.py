"""Admission: the queue has an end, in choices and in prompt tokens."""

import msgspec

from enginebay import hookimpl
from enginebay.flow import Refusal
from enginebay.hookspecs.admission import AdmissionContext, Ask, Load

from .bounds import require_least, require_order
from .claims import Claims
from .comeback import Comeback

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For either chain. An empty queue takes any request, so none is refused for ever."""

    max_waiting: int = 256
    """Choices that may wait for their start; a request with ``n`` choices counts as
    ``n``. 0: no bound."""
    max_waiting_tokens: int = 65_536
    """Prompt tokens that may wait; a prompt counts once for each choice. 0: no bound."""
    retry_after: float = 1.0
    """Seconds told to a refused caller while the engine's pace is unknown, and the
    shortest estimate at any time."""
    max_retry_after: float = 60.0
    """The longest estimate, in seconds; up to half as much more is told, so that not all
    come back at once."""


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
        self._choices = Claims()
        self._comeback = Comeback(options.retry_after, options.max_retry_after)

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        refusal = self._queue(ask, load) or self._tokens(ask, load)
        if refusal is None:
            self._choices.add(ask.request_id, ask.n)
        return refusal

    def release(self, request_id: str) -> None:
        self._choices.drop(request_id)

    def _queue(self, ask: Ask, load: Load) -> Refusal | None:
        limit = self._options.max_waiting
        waiting = max(load.num_waiting, self._choices.total - self._seats)
        if not limit or waiting <= 0 or waiting + ask.n <= limit:
            return None
        return self._refusal(
            reason="queue_full",
            message=f"{waiting} choices wait already and {ask.n} would join; {limit} may",
            limit=limit,
            current=waiting,
            retry_after=self._retry(waiting + ask.n - limit, ask, load),
        )

    def _tokens(self, ask: Ask, load: Load) -> Refusal | None:
        limit = self._options.max_waiting_tokens
        joining = ask.n * (ask.num_prompt_tokens or 0)
        total = load.waiting_tokens + joining
        if not limit or not load.num_waiting or total < limit or (joining and total == limit):
            return None
        choices = (total - limit) / max(load.waiting_tokens, 1) * load.num_waiting
        return self._refusal(
            reason="queue_tokens",
            message=f"{load.waiting_tokens} prompt tokens wait already; {limit} may",
            limit=limit,
            current=load.waiting_tokens,
            retry_after=self._retry(choices, ask, load),
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

    def _retry(self, choices: float, ask: Ask, load: Load) -> float:
        """Seconds until so many choices fewer are here."""
        return self._comeback.turn(ask, load, choices / self._choices.mean)


@hookimpl
def enginebay_admission(options: Options, context: AdmissionContext) -> BoundedQueue:
    """Build it for the engine's number of seats."""
    require_least(context, options, 0, "max_waiting", "max_waiting_tokens", "retry_after")
    require_order(context, options, ("retry_after", "max_retry_after"))
    return BoundedQueue(context.name, context.limits.max_sequences, options)
