"""The outermost layer: a request id, one log line, and no exception past it."""

import string
import time
import uuid
from typing import Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import api_error
from .keyring import Caller

HANGUP: Final = 499
"""Logged when the client left before an answer began."""
MAX_ID: Final = 128
_SAFE: Final = frozenset((string.ascii_letters + string.digits + "-_.:/+=").encode())

log = structlog.get_logger("enginebay.http")


class Access:
    """Wraps the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        request_id = _request_id(scope)
        status = HANGUP

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", request_id)]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, tell)
        except Exception as error:
            if status != HANGUP:
                raise  # the server closes the connection: the answer can't be completed
            await _answer(tell, error)
        finally:
            caller: Caller | None = scope.get("state", {}).get("caller")
            log.info(
                "request",
                method=scope["method"],
                path=scope["path"],
                status=status,
                seconds=round(time.monotonic() - began, 4),
                tenant=caller.tenant if caller else None,
                request_id=request_id.decode(),
            )


async def _answer(send: Send, error: Exception) -> None:
    found = api_error(error)
    if found.status == 500:
        log.error("a request failed inside the server", exc_info=error)
    body = found.body()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *found.headers(),
    ]
    await send({"type": "http.response.start", "status": found.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _request_id(scope: Scope) -> bytes:
    """The caller's id where it is harmless, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and 0 < len(value) <= MAX_ID and _SAFE.issuperset(value):
            return bytes(value)
    return uuid.uuid4().hex.encode()
