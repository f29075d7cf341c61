"""Admission: how much of the engine one tenant may hold at a time."""

from dataclasses import dataclass

import msgspec

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.flow import Refusal
from enginebay.hookspecs.admission import AdmissionContext, Ask, Load

from .bounds import require_least, require_order
from .comeback import Comeback

CONTRACT = (1, 0)


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one named tenant may hold; ``None``: what every tenant may."""

    max_requests: int | None = None
    max_choices: int | None = None


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For either chain; at the door a refusal costs least. 0: no bound."""

    max_requests: int = 16
    """Requests of one tenant that are admitted and unfinished."""
    max_choices: int = 0
    """Choices of those."""
    tenants: dict[str, Quota] = {}
    """Tenants with bounds of their own: ``{name = {max_requests = 64}}``."""
    retry_after: float = 1.0
    """Seconds told to a refused caller while the engine's pace is unknown, and the
    shortest estimate at any time."""
    max_retry_after: float = 60.0
    """The longest estimate, in seconds; up to half as much more is told."""


@dataclass(slots=True)
class Held:
    """Of one tenant, now."""

    requests: int = 0
    choices: int = 0


class TenantQuota:
    """Refuses (429) a tenant that holds its quota; nobody else's requests matter to it.

    A tenant is remembered only as long as it holds something.
    """

    def __init__(self, name: str, options: Options) -> None:
        self._name = name
        self._options = options
        self._held: dict[str, Held] = {}
        self._of: dict[str, tuple[str, int]] = {}
        """Tenant and choices of each admitted request."""
        self._comeback = Comeback(options.retry_after, options.max_retry_after)

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        held = self._held.get(ask.tenant, Held())
        own = self._options.tenants.get(ask.tenant, Quota())
        for what, limit, current, joining in (
            ("requests", _either(own.max_requests, self._options.max_requests), held.requests, 1),
            ("choices", _either(own.max_choices, self._options.max_choices), held.choices, ask.n),
        ):
            if limit and joining > limit:
                return self._never(ask.n, limit)
            if limit and current + joining > limit:
                return self._later(what, limit, current, ask, load)
        self._held[ask.tenant] = Held(held.requests + 1, held.choices + ask.n)
        self._of[ask.request_id] = ask.tenant, ask.n
        return None

    def release(self, request_id: str) -> None:
        tenant, choices = self._of.pop(request_id, ("", 0))
        held = self._held.get(tenant)
        if held is None:
            return
        held.requests -= 1
        held.choices -= choices
        if not held.requests:
            del self._held[tenant]

    def _never(self, choices: int, limit: int) -> Refusal:
        return Refusal(
            plugin=self._name,
            reason="tenant_choices_of_request",
            kind="invalid",
            message=f"the request has {choices} choices and its caller may hold {limit}: lower n",
            limit=limit,
            current=choices,
            param="n",
        )

    def _later(self, what: str, limit: int, current: int, ask: Ask, load: Load) -> Refusal:
        """``retry_after``: until one of the tenant's own ends, taken to be as fast as any."""
        own = self._held[ask.tenant].requests
        pace = load.requests_per_second * own / len(self._of)
        wait = self._comeback.after(ask, 1 / pace if pace > 0 else 0.0)
        return Refusal(
            plugin=self._name,
            reason=f"tenant_{what}",
            kind="caller",
            message=(
                f"this caller has {current} {what} under way and may have {limit}. "
                f"Try again in {wait:g} seconds"
            ),
            limit=limit,
            current=current,
            retry_after=wait,
        )


def _either(own: int | None, usual: int) -> int:
    return usual if own is None else own


@hookimpl
def enginebay_admission(options: Options, context: AdmissionContext) -> TenantQuota:
    """Build it."""
    require_least(context, options, 0, "max_requests", "max_choices", "retry_after")
    require_order(context, options, ("retry_after", "max_retry_after"))
    for tenant, quota in options.tenants.items():
        for field in Quota.__struct_fields__:
            if (getattr(quota, field) or 0) < 0:
                value = getattr(quota, field)
                msg = f"{context.name}: tenants.{tenant}.{field} is {value}; it must be 0 or more"
                raise StackError(msg)
    return TenantQuota(context.name, options)
