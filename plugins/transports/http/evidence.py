"""What happened to a request, and who holds the memory. Tenants see what is theirs."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from enginebay.hookspecs.client import EngineClient
from enginebay.timeline import latencies
from enginebay.trace import chrome_trace

from ...sinks.wire import encode
from .errors import ApiError
from .gateway import Gateway
from .keyring import Caller
from .origin import caller_of

MAX_LISTED: Final = 1000
DEFAULT_LISTED: Final = 100
FORMATS: Final = ("json", "trace")

Events = tuple[dict[str, Any], ...]


class Evidence:
    """Answers from snapshots alone."""

    def __init__(self, gateway: Gateway) -> None:
        self._clients: Mapping[str, EngineClient] = gateway.clients
        self._recent = gateway.recent

    async def requests(self, request: Request) -> Response:
        """``GET /v1/requests``: the last requests that the engine took, newest first."""
        limit = _limit(request)
        caller = caller_of(request.scope)
        listed = [
            {
                "id": taken.id,
                "object": "request",
                "model": taken.model,
                "created": taken.created,
                "tenant": taken.tenant,
            }
            for taken, _ in zip(self._recent.of(caller), range(limit), strict=False)
        ]
        return _json({"object": "list", "data": listed})

    async def timeline(self, request: Request) -> Response:
        """``GET /v1/requests/{id}/timeline``: events and latencies, in seconds; with
        ``?format=trace`` a picture for Perfetto. Of a request with several prompts, a
        list of them."""
        form = request.query_params.get("format", "json")
        if form not in FORMATS:
            raise ApiError(400, f"format is one of {', '.join(FORMATS)}", param="format")
        caller = caller_of(request.scope)
        id_ = request.path_params["id"]
        found = {own: self._find(own, caller) for own in self._recent.request_ids(id_)}
        known = {own: pair for own, pair in found.items() if pair is not None}
        if not known:
            message = "there is no such request; timelines of the last ones are kept"
            raise ApiError(404, message, param="id", code="request_not_found")
        if form == "trace":
            return _json(chrome_trace({own: events for own, (_, events) in known.items()}))
        bodies = [_timeline(own, model, events) for own, (model, events) in known.items()]
        several = len(found) > 1
        return _json({"object": "list", "id": id_, "data": bodies} if several else bodies[0])

    async def ledger(self, request: Request) -> Response:
        """``GET /v1/ledger``: memory by owner, model by model."""
        caller = caller_of(request.scope)
        data = [
            {
                "object": "ledger",
                "model": name,
                "ledger": visible(client.snapshot().ledger, caller),
            }
            for name, client in self._clients.items()
        ]
        return _json({"object": "list", "data": data})

    def _find(self, request_id: str, caller: Caller) -> tuple[str, Events] | None:
        """(model, events), where the caller may see them."""
        for name, client in self._clients.items():
            snapshot = client.snapshot(request_id)
            if snapshot.timeline and caller.may_see(snapshot.tenant):
                return name, snapshot.timeline
        return None


def visible(value: Any, caller: Caller) -> Any:
    """A ledger without other tenants' rows: entries of a map called ``tenants``, and
    whatever names its ``tenant``, at any depth."""
    if isinstance(value, Mapping):
        return {
            key: visible(
                {tenant: row for tenant, row in inner.items() if caller.may_see(tenant)}
                if key == "tenants" and isinstance(inner, Mapping)
                else inner,
                caller,
            )
            for key, inner in value.items()
            if not _hidden(inner, caller)
        }
    if isinstance(value, list | tuple):
        return [visible(inner, caller) for inner in value if not _hidden(inner, caller)]
    return value


def _hidden(value: Any, caller: Caller) -> bool:
    return isinstance(value, Mapping) and not caller.may_see(value.get("tenant", caller.tenant))


def _timeline(request_id: str, model: str, events: Events) -> dict[str, Any]:
    return {
        "id": request_id,
        "object": "request.timeline",
        "model": model,
        "events": events,
        "latencies": msgspec.to_builtins(latencies(events)),
    }


def _limit(request: Request) -> int:
    given = request.query_params.get("limit", str(DEFAULT_LISTED))
    if not (given.isascii() and given.isdigit() and 1 <= int(given[:6]) <= MAX_LISTED):
        raise ApiError(400, f"limit: give 1 to {MAX_LISTED}", param="limit")
    return int(given)


def _json(body: dict[str, Any]) -> Response:
    return Response(encode(body), media_type="application/json")
