"""Admission members with one fault each, on top of the shipped ones."""

import random
import threading
import time
from typing import Final

from msgspec.structs import replace

from enginebay.flow import Refusal
from enginebay.hookspecs.admission import AdmissionContext, Ask, Load
from enginebay.plugins.admission import bounded_queue, rate_limit, tenant_quota

from .mutant import Mutant


class Queue(bounded_queue.BoundedQueue):
    """A queue of twelve choices."""

    def __init__(self, context: AdmissionContext) -> None:
        options = bounded_queue.Options(max_waiting=12)
        super().__init__(context.name, context.limits.max_sequences, options)


class Quota(tenant_quota.TenantQuota):
    """Five requests a tenant."""

    def __init__(self, context: AdmissionContext) -> None:
        super().__init__(context.name, tenant_quota.Options(max_requests=5))


class Rate(rate_limit.RateLimit):
    """Ten requests a minute."""

    def __init__(self, context: AdmissionContext) -> None:
        options = rate_limit.Options(requests=10.0)
        super().__init__(context.name, context.limits.max_model_len, options)


class KeepsTheEnded(Queue):
    """What ended keeps its place."""

    def release(self, request_id: str) -> None:
        """It stays."""


class CountsTheRefused(Quota):
    """Who is refused takes a place as well."""

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        refusal = super().ask(ask, load)
        if refusal is not None and refusal.retry_after:
            self._held[ask.tenant].requests += 1
        return refusal


class CountsTheTurnedAway(Quota):
    """Only what was served gives its place back."""

    def __init__(self, context: AdmissionContext) -> None:
        super().__init__(context)
        self._settled: set[str] = set()

    def settle(self, request_id: str, usage: object) -> None:
        """It was served."""
        self._settled.add(request_id)

    def release(self, request_id: str) -> None:
        if request_id in self._settled:
            self._settled.discard(request_id)
            super().release(request_id)


class NamesNoTime(Queue):
    """It refuses for now and does not say until when."""

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        refusal = super().ask(ask, load)
        return refusal and replace(refusal, retry_after=None)


class GoesByAnotherName(Queue):
    """Its refusals carry the plugin's name, not the chain's."""

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        refusal = super().ask(ask, load)
        return refusal and replace(refusal, plugin="bounded-queue")


class PromisesTooMuch(Rate):
    """It sends callers back too early."""

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        refusal = super().ask(ask, load)
        return refusal and replace(refusal, retry_after=(refusal.retry_after or 0.0) / 10)


class HasAClockOfItsOwn(Rate):
    """It looks at the wall, so an hour of the engine's is none of its."""

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        return super().ask(ask, replace(load, now=time.monotonic()))


class ThrowsDice(Queue):
    """Waits are spread by chance."""

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        refusal = super().ask(ask, load)
        return refusal and replace(refusal, retry_after=1.0 + random.random())


class RemembersEverybody(Quota):
    """Each tenant's count stays, at zero."""

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        self._held.setdefault(ask.tenant, tenant_quota.Held())
        return super().ask(ask, load)

    def release(self, request_id: str) -> None:
        tenant, choices = self._of.pop(request_id)
        self._held[tenant].requests -= 1
        self._held[tenant].choices -= choices


class OneQuotaForAll(Quota):
    """It looks at no tenant."""

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        return super().ask(replace(ask, tenant="all"), load)


class GivesIn(Queue):
    """Who insists is let in."""

    refused = 0

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        refusal = super().ask(ask, load)
        self.refused += refusal is not None
        return None if self.refused % 5 == 4 else refusal


class LooksAtEverybody(Queue):
    """It adds up all claims at every answer."""

    def __init__(self, context: AdmissionContext) -> None:
        super().__init__(context)
        self._all: dict[str, int] = {}

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        held = 0
        for choices in self._all.values():
            held += choices
        self._all[ask.request_id] = ask.n
        return super().ask(ask, load)

    def release(self, request_id: str) -> None:
        del self._all[request_id]
        super().release(request_id)


class KnowsItsThread(Quota):
    """What one thread reserved another can't give back."""

    def __init__(self, context: AdmissionContext) -> None:
        super().__init__(context)
        self._mine = threading.local()

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        self._mine.ids = {*getattr(self._mine, "ids", ()), ask.request_id}
        return super().ask(ask, load)

    def release(self, request_id: str) -> None:
        if request_id in getattr(self._mine, "ids", ()):
            super().release(request_id)


class ClosedWhenIdle(Queue):
    """Nobody gets in before somebody waits."""

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        return super().ask(ask, replace(load, num_waiting=load.num_waiting or 99))


class NeedsTheLength(Queue):
    """At the door it counts on a length that is not known."""

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        if -ask.num_prompt_tokens > 0:  # type: ignore[operator]
            return None
        return super().ask(ask, load)


ADMISSION_MUTANTS: Final = (
    Mutant("keeps what ended", KeepsTheEnded, "admission/release"),
    Mutant("counts the refused", CountsTheRefused, "admission/refused"),
    Mutant("counts the turned away", CountsTheTurnedAway, "admission/turned-away"),
    Mutant("names no time", NamesNoTime, "admission/refusals"),
    Mutant("goes by another name", GoesByAnotherName, "admission/refusals"),
    Mutant("promises too much", PromisesTooMuch, "admission/retry-after"),
    Mutant("has a clock of its own", HasAClockOfItsOwn, "admission/retry-after"),
    Mutant("throws dice", ThrowsDice, "admission/repeats"),
    Mutant("remembers everybody", RemembersEverybody, "admission/growth"),
    Mutant("one quota for all", OneQuotaForAll, "admission/tenants"),
    Mutant("gives in", GivesIn, "admission/steady"),
    Mutant("looks at everybody", LooksAtEverybody, "admission/cost"),
    Mutant("knows its thread", KnowsItsThread, "admission/threads"),
    Mutant("closed when idle", ClosedWhenIdle, "admission/idle"),
    Mutant("needs the length at the door", NeedsTheLength, "admission/door"),
)
