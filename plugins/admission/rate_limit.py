"""Admission: requests and tokens of one tenant in a time, by token buckets."""

import math
from typing import Final

import msgspec

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.flow import Refusal, Usage
from enginebay.hookspecs.admission import AdmissionContext, Ask, Load

from .bounds import require_budget, require_least
from .buckets import Bucket, Tenants

CONTRACT = (1, 0)
KINDS: Final = ("requests", "tokens")


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one named tenant may use; ``None``: what every tenant may."""

    requests: float | None = None
    tokens: float | None = None
    burst_requests: float | None = None
    burst_tokens: float | None = None


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For the ``door`` chain when requests alone are counted, else for ``budget``."""

    requests: float = 60.0
    """Requests of a tenant in each period; 0: not counted."""
    tokens: float = 0.0
    """Tokens of a tenant in each period, of prompts and answers together; 0: not
    counted. In ``budget`` alone: the door doesn't know a prompt's length."""
    period: float = 60.0
    """Seconds."""
    burst_requests: float = 0.0
    """Requests that may come at once after a pause; 0: a period's worth."""
    burst_tokens: float = 0.0
    """Tokens that may be asked for at once after a pause; 0: a period's worth."""
    refund: bool = True
    """Whether a request that ends gives back what it did not generate. When false,
    ``max_tokens`` is paid for as asked, so that a large one has its price."""
    tenants: dict[str, Rate] = {}
    """Tenants with rates of their own: ``{name = {requests = 600}}``."""
    max_tenants: int = 10_000
    """Tenants remembered at a time. Whoever used nothing for long enough to have
    everything back needs no memory."""


class RateLimit:
    """Refuses (429) a tenant that used up its rate, and says exactly when it has enough.

    An admitted request pays at once: one request, and its prompt with ``max_tokens`` for
    each choice. Tokens that were not used come back at its end, all of them when a later
    member turned it away. The request itself does not come back: asking has its price,
    whatever comes of it.
    """

    def __init__(self, name: str, limits_length: int, options: Options) -> None:
        self._name = name
        self._max_model_len = limits_length
        self._options = options
        self._tenants = Tenants(options.max_tenants)
        self._paid: dict[str, tuple[str, int]] = {}
        """Tenant and tokens of each admitted request."""

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        buckets = self._tenants.get(ask.tenant) or self._full(ask.tenant, load.now)
        costs = {"requests": 1, "tokens": self._tokens(ask)}
        for kind, bucket in buckets.items():
            bucket.refill(load.now)
            if costs[kind] > bucket.size:
                return self._never(costs[kind], bucket)
        if not buckets:
            return None
        kind = max(buckets, key=lambda kind: buckets[kind].wait(costs[kind]))
        seconds = buckets[kind].wait(costs[kind])
        if seconds > 0:
            return self._later(kind, buckets[kind], seconds)
        for kind, bucket in buckets.items():
            bucket.take(costs[kind])
        self._tenants.keep(ask.tenant, buckets)
        if "tokens" in buckets:
            self._paid[ask.request_id] = ask.tenant, costs["tokens"]
        return None

    def settle(self, request_id: str, usage: Usage) -> None:
        """Give back what was paid for and not used."""
        tenant, paid = self._paid.pop(request_id, ("", 0))
        if paid and self._options.refund:
            self._give_back(tenant, paid - usage.prompt_tokens - usage.completion_tokens)

    def release(self, request_id: str) -> None:
        self._give_back(*self._paid.pop(request_id, ("", 0)))

    def _give_back(self, tenant: str, tokens: int) -> None:
        bucket = self._tenants.get(tenant).get("tokens")
        if bucket is not None and tokens > 0:
            bucket.give_back(tokens)

    def _tokens(self, ask: Ask) -> int:
        prompt = ask.num_prompt_tokens or 0
        room = max(self._max_model_len - prompt, 0)
        return prompt + ask.n * (room if ask.max_tokens is None else ask.max_tokens)

    def _full(self, tenant: str, now: float) -> dict[str, Bucket]:
        """The buckets of a tenant of whom nothing is remembered."""
        own, buckets = self._options.tenants.get(tenant, Rate()), {}
        for kind in KINDS:
            rate = _either(getattr(own, kind), getattr(self._options, kind))
            burst = f"burst_{kind}"
            size = _either(getattr(own, burst), getattr(self._options, burst)) or rate
            if kind == "requests":
                size = max(size, 1.0)  # less than one in a period: one at a time, rarely
            if rate:
                buckets[kind] = Bucket(rate / self._options.period, size, size, now)
        return buckets

    def _never(self, tokens: int, bucket: Bucket) -> Refusal:
        return Refusal(
            plugin=self._name,
            reason="rate_tokens_of_request",
            kind="invalid",
            message=(
                f"the request may use {tokens} tokens and this caller may use "
                f"{bucket.size:g} at once: lower max_tokens or n, or shorten the prompt"
            ),
            limit=bucket.size,
            current=tokens,
            param="max_tokens",
        )

    def _later(self, kind: str, bucket: Bucket, seconds: float) -> Refusal:
        wait = math.ceil(1000 * seconds) / 1000
        rate = bucket.rate * self._options.period
        return Refusal(
            plugin=self._name,
            reason=f"rate_{kind}",
            kind="caller",
            message=(
                f"this caller may use {rate:g} {kind} in {self._options.period:g} seconds. "
                f"Try again in {wait:g} seconds"
            ),
            limit=bucket.size,
            current=round(bucket.size - bucket.level, 3),
            retry_after=wait,
        )


def _either(own: float | None, usual: float) -> float:
    return usual if own is None else own


@hookimpl
def enginebay_admission(options: Options, context: AdmissionContext) -> RateLimit:
    """Build it.

    :raises StackError: an option is out of range, or tokens are to be counted at the door
    """
    rates: tuple[Options | Rate, ...] = (options, *options.tenants.values())
    if any(rate.tokens for rate in rates):
        require_budget(context, "counting tokens")
    for rate, field in ((rate, field) for rate in rates for field in Rate.__struct_fields__):
        value = getattr(rate, field)
        if not (value is None or value >= 0):
            raise StackError(f"{context.name}: {field} is {value}; it must be 0 or more")
    if not 0 < options.period < math.inf:
        msg = f"{context.name}: period is {options.period}; it must be above 0 and finite"
        raise StackError(msg)
    require_least(context, options, 1, "max_tenants")
    return RateLimit(context.name, context.limits.max_model_len, options)
