"""Who may pass, and whether anybody: asked before a body is read or a route is looked for."""

from collections.abc import Mapping
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from enginebay.hookspecs.client import EngineClient

from .errors import ApiError, unavailable
from .keyring import ANYONE, Caller, KeyRing, presented_key

ALWAYS_OPEN: Final = frozenset({"/health", "/ready"})
"""For load balancers, which have no key and ask while a model loads."""


class Gate:
    """Names the caller in ``scope["state"]["caller"]``, or answers 401 or 503."""

    def __init__(
        self,
        app: ASGIApp,
        clients: Mapping[str, EngineClient],
        keyring: KeyRing | None,
        unlocked: frozenset[str],
    ) -> None:
        """:param unlocked: further paths that need no key"""
        self._app = app
        self._clients = clients
        self._keyring = keyring
        self._unlocked = unlocked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and scope["path"] not in ALWAYS_OPEN:
            if scope["path"] not in self._unlocked:
                scope.setdefault("state", {})["caller"] = self._caller(scope)
            if starting(self._clients):
                raise unavailable("the model is being loaded; try again", "starting")
        await self._app(scope, receive, send)

    def _caller(self, scope: Scope) -> Caller:
        if self._keyring is None:
            return ANYONE
        presented = presented_key(scope["headers"])
        caller = self._keyring.caller(presented)
        if caller is None:
            raise _unauthorized(presented is not None)
        return caller


def starting(clients: Mapping[str, EngineClient]) -> bool:
    """Whether a model is still being loaded."""
    return any(client.health().state == "starting" for client in clients.values())


def _unauthorized(presented: bool) -> ApiError:
    """OpenAI's shape; the challenge is that of RFC 6750, section 3."""
    message = (
        "the API key is wrong or revoked"
        if presented
        else "no API key: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'"
    )
    challenge = b'Bearer realm="enginebay"' + (b', error="invalid_token"' if presented else b"")
    headers = ((b"www-authenticate", challenge),)
    return ApiError(401, message, code="invalid_api_key", headers=headers)
