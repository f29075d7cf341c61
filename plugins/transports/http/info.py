"""The endpoints that only tell: models, health, readiness, metrics, version."""

import time
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from enginebay import __version__
from enginebay.hookspecs.client import EngineClient

from ...sinks.wire import encode
from .errors import ApiError
from .gateway import Gateway
from .keyring import ANYONE, Caller

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ORDER: Final = ("failed", "closed", "starting", "draining", "ready")


class Info:
    """Answers from health and snapshots alone."""

    def __init__(self, gateway: Gateway, version: str) -> None:
        self._gateway = gateway
        self._clients: Mapping[str, EngineClient] = gateway.clients
        self._version = version
        self._created = int(time.time())

    async def models(self, request: Request) -> Response:
        """``GET /v1/models``"""
        data = [self._model(name, client) for name, client in self._clients.items()]
        return _json({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        """``GET /v1/models/{id}``"""
        name = request.path_params["id"]
        if name not in self._clients:
            message = "the model does not exist; /v1/models lists those that do"
            raise ApiError(404, message, param="model", code="model_not_found")
        return _json(self._model(name, self._clients[name]))

    async def health(self, request: Request) -> Response:
        """``GET /health``: 200 while every engine is alive, busy or not."""
        alive = all(client.health().alive for client in self._clients.values())
        return _json({"status": "ok" if alive else "failed"}, 200 if alive else 503)

    async def ready(self, request: Request) -> Response:
        """``GET /ready``: 200 while every model takes requests."""
        states = {name: client.health() for name, client in self._clients.items()}
        draining = self._gateway.draining
        ready = not draining and all(health.ready for health in states.values())
        found = [health.state for health in states.values()] + ["draining"] * draining
        body = {
            "state": min(found, key=_ORDER.index),
            "ready": ready,
            "validated": all(health.validated for health in states.values()),
            "models": {
                name: {"state": health.state, "validated": health.validated}
                for name, health in states.items()
            },
        }
        return _json(body, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """``GET /metrics``: the text of every engine, as one exposition.

        It names every tenant: where a key is asked for, it must be an admin's.
        """
        caller: Caller = request.scope.get("state", {}).get("caller", ANYONE)
        if not (caller.admin or caller is ANYONE):
            message = "metrics tell of every tenant: use a key made with --admin"
            raise ApiError(403, message, code="admin_key_needed")
        texts = [client.snapshot().metrics for client in self._clients.values()]
        return Response(join_metrics(texts), media_type=METRICS_TYPE)

    async def version(self, request: Request) -> Response:
        """``GET /version``: the package's version, and the service's."""
        known = [client.snapshot().info for client in self._clients.values()]
        versions = [info["service_version"] for info in known if "service_version" in info]
        service = self._version or "+".join(versions)
        return _json({"version": __version__, "service_version": service})

    def _model(self, name: str, client: EngineClient) -> dict[str, Any]:
        limits = client.snapshot().info.get("limits", {})
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "enginebay",
            "max_model_len": limits.get("max_model_len"),
        }


def join_metrics(texts: list[str]) -> str:
    """Several expositions as one: the samples of a family stand together, its ``HELP``
    and ``TYPE`` once (Prometheus text format 0.0.4)."""
    families: dict[str, list[str]] = {}
    seen: set[str] = set()
    for text in texts:
        family = ""
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                if line in seen:
                    continue
                seen.add(line)
            families.setdefault(family, []).append(line)
    return "".join(f"{line}\n" for lines in families.values() for line in lines if line)


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(encode(body), status, media_type="application/json")
