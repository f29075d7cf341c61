"""A client through which everything passes as bytes: the edge, proven to be plain data.

Every argument, answer, error and batch of events is encoded with msgspec and decoded
again, so whatever could not cross to another process fails here.
"""

from typing import Any

import msgspec

from enginebay.errors import EngineStopped, InvalidRequest, RequestRefused
from enginebay.flow import (
    Accepted,
    EventBatch,
    FinishReason,
    Frozen,
    Invalid,
    Refusal,
    Request,
    Written,
)
from enginebay.hookspecs.client import EngineClient, Health, Listener, Snapshot


class Stopped(Frozen, frozen=True, kw_only=True, tag="stopped"):
    """The engine takes no requests."""

    message: str


class Canceled(Frozen, frozen=True, kw_only=True):
    """A cancellation as a message."""

    request_id: str
    reason: FinishReason


Reply = Accepted | Refusal | Invalid | Stopped


def over_the_wire(value: Any, kind: Any) -> Any:
    """A value as the other side would get it.

    :raises TypeError: it holds something that is not plain data
    :raises msgspec.ValidationError: it is not of its declared type
    """
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)


class EncodedClient:
    """Wraps a client; nothing but bytes goes through."""

    def __init__(self, inner: EngineClient) -> None:
        self._inner = inner

    def submit(self, request: Request) -> Accepted:
        """Errors are messages too, and are raised again on this side.

        :raises InvalidRequest: it can't be sent, such as an integer beyond 64 bits
        """
        try:
            sent = over_the_wire(request, Request)
        except (OverflowError, TypeError, msgspec.ValidationError) as error:
            raise InvalidRequest(f"the request can't be sent: {error}") from error
        reply = over_the_wire(self._answer(sent), Reply)
        match reply:
            case Refusal():
                raise RequestRefused(reply)
            case Invalid():
                raise InvalidRequest(reply.message, reply.param, reply.code)
            case Stopped():
                raise EngineStopped(reply.message)
        accepted: Accepted = reply
        return accepted

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """End a request."""
        message = over_the_wire(Canceled(request_id=request_id, reason=reason), Canceled)
        self._inner.cancel(message.request_id, message.reason)

    def events(self, listener: Listener) -> None:
        """Every batch is decoded before the listener sees it."""
        self._inner.events(lambda batch: listener(over_the_wire(batch, EventBatch)))

    def acknowledge(self, written: tuple[Written, ...]) -> None:
        """Report tokens as written."""
        self._inner.acknowledge(over_the_wire(written, tuple[Written, ...]))

    def snapshot(self, request_id: str | None = None) -> Snapshot:
        """Model, limits and memory are plain data as well."""
        asked = over_the_wire(request_id, str | None)
        snapshot: Snapshot = over_the_wire(self._inner.snapshot(asked), Snapshot)
        return snapshot

    def health(self) -> Health:
        """Whether requests can be served."""
        health: Health = over_the_wire(self._inner.health(), Health)
        return health

    def drain(self, timeout: float) -> bool:
        """Blocks, as the inner one does."""
        return bool(over_the_wire(self._inner.drain(over_the_wire(timeout, float)), bool))

    def _answer(self, request: Request) -> Reply:
        try:
            return self._inner.submit(request)
        except InvalidRequest as error:
            return error.detail
        except RequestRefused as error:
            return error.refusal
        except EngineStopped as error:
            return Stopped(message=str(error))
