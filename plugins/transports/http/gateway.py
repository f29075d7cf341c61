"""Between HTTP answers and engine clients: submits, distributes, acknowledges, cancels.

The engine's thread calls ``_deliver`` once a step; the loop wakes once for it, whatever
the number of streams.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from enginebay.flow import Accepted, EventBatch, Failure, FinishReason, Refusal, Written
from enginebay.hookspecs.client import EngineClient
from enginebay.hookspecs.sink import Reply, SinkKind

from .call import Call
from .errors import ApiError, Refused, unavailable
from .exchange import Exchange
from .recent import Recent

TICK_SECONDS: Final = 0.5
"""How often slow readers and dead engines are looked for."""
GRACE_SECONDS: Final = 2.0
"""What a dead engine gets to end its requests itself."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Bounds:
    """What the transport holds its callers to."""

    max_pending: int
    """Requests being parsed and submitted at a time."""
    encode_threads: int
    slow_reader_seconds: float


class Gateway:
    """All answers under way. Belongs to one event loop."""

    def __init__(
        self,
        clients: Mapping[str, EngineClient],
        sinks: Mapping[str, SinkKind],
        bounds: Bounds,
    ) -> None:
        self.clients = clients
        self.draining = False
        self.recent = Recent()
        self._sinks = sinks
        self._bounds = bounds
        self._exchanges: dict[str, Exchange] = {}
        self._pending = 0
        self._pool = ThreadPoolExecutor(bounds.encode_threads, thread_name_prefix="http-encode")
        self._written: dict[int, tuple[EngineClient, list[Written]]] = {}
        self._dead_since: dict[str, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen to the clients' events."""
        self._loop = loop
        for client in self.clients.values():
            client.events(self._deliver)

    def stop(self) -> None:
        """Let go of the threads."""
        self._loop = None
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def num_open(self) -> int:
        """Engine requests whose answers are under way."""
        return len(self._exchanges)

    # --- one answer --------------------------------------------------------------

    async def submit(self, exchange: Exchange, read: Callable[[], Call]) -> Call:
        """Parse and submit off the loop, and open the answer's sink.

        :raises ApiError: the body is wrong, or the server can't take more
        """
        if self.draining:
            raise unavailable("the server is shutting down", "shutting_down")
        if self._pending >= self._bounds.max_pending:
            raise _too_many(self._pending, self._bounds.max_pending)
        loop = asyncio.get_running_loop()
        self._pending += 1
        try:
            call, accepted = await loop.run_in_executor(self._pool, self._enter, exchange, read)
        finally:
            self._pending -= 1
        self.recent.add(call)
        kind = self._sinks["sse" if call.stream else "json"]
        exchange.open(kind.open(_with_prompts(call.reply, accepted)))
        return call

    def acknowledge(self, exchange: Exchange) -> None:
        """Report what an answer has written; one call a client and loop turn."""
        if exchange.client is None or self._loop is None:
            return
        if not self._written:
            self._loop.call_soon(self._flush)
        mine = self._written.setdefault(id(exchange.client), (exchange.client, []))
        mine[1].extend(exchange.written())

    def abandon(self, exchange: Exchange) -> None:
        """Its reader is gone: cancel at once."""
        exchange.gone = True
        exchange.wake()
        self._cancel(exchange, "cancelled")

    def close(self, exchange: Exchange) -> None:
        """The answer is over; what still runs of it is cancelled."""
        exchange.gone = True
        self._withdraw(exchange)

    def fail_all(self, message: str) -> None:
        """End every answer with an error."""
        for exchange in set(self._exchanges.values()):
            self._cancel(exchange, "cancelled")
            exchange.fail(Failure(message=message, kind="engine"))

    # --- the submitting threads --------------------------------------------------

    def _enter(
        self, exchange: Exchange, read: Callable[[], Call]
    ) -> tuple[Call, tuple[Accepted, ...]]:
        call = read()
        client = self.clients.get(call.model)
        if client is None:
            name = call.model[:64]
            message = f"the model {name!r} does not exist; /v1/models lists those that do"
            raise ApiError(404, message, param="model", code="model_not_found")
        # Events may come before submit returns: the exchange is known by then.
        exchange.bind(client, tuple(request.id for request in call.requests))
        accepted: list[Accepted] = []
        try:
            for request in call.requests:
                self._exchanges[request.id] = exchange
                accepted.append(client.submit(request))
                if exchange.gone:
                    break
        finally:
            if exchange.gone:
                # ``close`` may have come before the engine knew the request.
                self._withdraw(exchange)
        return call, tuple(accepted)

    def _withdraw(self, exchange: Exchange) -> None:
        if not exchange.ended:
            self._cancel(exchange, "cancelled")
        for request_id in exchange.ids:
            self._exchanges.pop(request_id, None)

    def _cancel(self, exchange: Exchange, reason: FinishReason) -> None:
        if exchange.client is not None:
            for request_id in exchange.ids:
                exchange.client.cancel(request_id, reason)

    # --- events and acknowledgements ---------------------------------------------

    def _deliver(self, batch: EventBatch) -> None:
        """On the engine's thread: hand a step's events to the loop."""
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(self._distribute, batch)
        except RuntimeError:
            log.debug("the loop is closed; nobody reads these events", step=batch.step)

    def _distribute(self, batch: EventBatch) -> None:
        touched: dict[int, Exchange] = {}
        for event in batch.events:
            exchange = self._exchanges.get(event.request_id)
            if exchange is not None:
                exchange.push(event)
                touched[id(exchange)] = exchange
        for exchange in touched.values():
            exchange.wake()

    def _flush(self) -> None:
        written, self._written = self._written, {}
        for client, reports in written.values():
            if reports:
                client.acknowledge(tuple(reports))

    async def watch(self) -> None:
        """Cut readers that take nothing, and end what a dead engine left behind."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            for exchange in set(self._exchanges.values()):
                since = exchange.writing_since
                if since is not None and now - since > self._bounds.slow_reader_seconds:
                    self._cancel(exchange, "slow_reader")
                    exchange.cut()
            for name, client in self.clients.items():
                self._check_alive(name, client, now)

    def _check_alive(self, name: str, client: EngineClient, now: float) -> None:
        if client.health().alive:
            self._dead_since.pop(name, None)
            return
        since = self._dead_since.setdefault(name, now)
        if now - since > GRACE_SECONDS:
            failure = Failure(message="the engine stopped; try again later", kind="engine")
            for exchange in set(self._exchanges.values()):
                if exchange.client is client and not exchange.closed:
                    exchange.fail(failure)


def _too_many(pending: int, limit: int) -> ApiError:
    return Refused(
        Refusal(
            plugin="http",
            reason="too_many_pending",
            kind="server",
            message=f"{pending} requests wait to be read; try again",
            limit=limit,
            current=pending,
        )
    )


def _with_prompts(reply: Reply, accepted: tuple[Accepted, ...]) -> Reply:
    if not reply.return_token_ids:
        return reply
    ids = [answer.prompt_token_ids for answer in accepted]
    parts = tuple(
        msgspec.structs.replace(part, prompt_token_ids=own)
        for part, own in zip(reply.parts, ids, strict=False)
    )
    return msgspec.structs.replace(reply, prompt_token_ids=ids[0], parts=parts)
