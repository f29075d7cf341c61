"""The two generating endpoints: read, submit, write, and stop when nobody listens."""

import asyncio
import time
from collections.abc import Callable

import structlog
from starlette.types import Receive, Scope, Send

from enginebay.flow import Failure

from ...sinks.wire import ErrorBody, encode
from .body import Gone, read_body
from .call import Call, Origin
from .errors import ApiError, api_error
from .exchange import Exchange
from .gateway import Gateway
from .origin import origin_of

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

log = structlog.get_logger(__name__)


class Generate:
    """An ASGI endpoint. One task serves the answer, one more waits for a hang-up."""

    def __init__(
        self,
        gateway: Gateway,
        read: Callable[[bytes, Origin], Call],
        max_body_bytes: int,
        body_seconds: float,
    ) -> None:
        self._gateway = gateway
        self._read = read
        self._max_body_bytes = max_body_bytes
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            raw = await read_body(scope, receive, self._max_body_bytes, self._body_seconds)
        except Gone:
            return
        origin = origin_of(scope)
        connection = scope.get("state", {}).get("connection")
        exchange = Exchange(connection.abort if connection is not None else None)
        watcher = asyncio.create_task(self._watch(receive, exchange))
        try:
            call = await self._gateway.submit(exchange, lambda: self._read(raw, origin))
            serve = self._stream if call.stream else self._whole
            await serve(exchange, send)
        except Exception as error:
            if not exchange.gone:
                raise
            log.debug("the client left", error=str(error))
        finally:
            watcher.cancel()
            self._gateway.close(exchange)

    async def _watch(self, receive: Receive, exchange: Exchange) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        self._gateway.abandon(exchange)

    async def _stream(self, exchange: Exchange, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        while not exchange.gone:
            try:
                data = exchange.pump()
            except Exception as error:  # noqa: BLE001 (a sink that fails ends its request alone)
                await self._write(exchange, send, _sink_failed(error))
                return
            if data:
                await self._write(exchange, send, data, last=exchange.closed)
            if exchange.closed:
                return
            if not data:
                await exchange.wait()

    async def _write(
        self, exchange: Exchange, send: Send, data: bytes, *, last: bool = True
    ) -> None:
        exchange.writing_since = time.monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": not last})
        exchange.writing_since = None
        self._gateway.acknowledge(exchange)

    async def _whole(self, exchange: Exchange, send: Send) -> None:
        data = exchange.pump()
        while not exchange.closed:
            await exchange.wait()
            if exchange.gone:
                return
            data += exchange.pump()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
        status = 200 if exchange.failure is None else _status(exchange.failure)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await self._write(exchange, send, data)


def _status(failure: Failure) -> int:
    return 503 if failure.kind == "engine" else 500


def _sink_failed(error: Exception) -> bytes:
    log.error("a sink failed", exc_info=error)
    failed: ApiError = api_error(error)
    return b"data: %b\n\n" % encode(ErrorBody(error=failed.detail))
