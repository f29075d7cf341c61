"""The last requests that came over this transport: whose they are, and what they became."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .call import Call
from .keyring import Caller

CAPACITY: Final = 1024
"""Timelines are kept for about as many."""


@dataclass(frozen=True)
class Taken:
    """One HTTP request that the engine took."""

    id: str
    """As its answer carried it."""
    model: str
    tenant: str
    created: int
    """Unix seconds."""
    request_ids: tuple[str, ...]
    """Its engine requests, one a prompt."""


class Recent:
    """Bounded; the oldest go first. Belongs to the event loop."""

    def __init__(self) -> None:
        self._taken: OrderedDict[str, Taken] = OrderedDict()

    def add(self, call: Call) -> None:
        """Every prompt of it was accepted."""
        reply = call.reply
        self._taken[reply.request_id] = Taken(
            id=reply.request_id,
            model=call.model,
            tenant=call.requests[0].tenant,
            created=reply.created,
            request_ids=tuple(request.id for request in call.requests),
        )
        if len(self._taken) > CAPACITY:
            self._taken.popitem(last=False)

    def request_ids(self, id_: str) -> tuple[str, ...]:
        """The engine requests behind an answer's id; an unknown id stands for itself."""
        taken = self._taken.get(id_)
        return (id_,) if taken is None else taken.request_ids

    def of(self, caller: Caller) -> Iterator[Taken]:
        """What a caller may see, newest first."""
        return (taken for taken in reversed(self._taken.values()) if caller.may_see(taken.tenant))
