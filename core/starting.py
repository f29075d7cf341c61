"""A client for an engine that is still being built, so that transports can answer before."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from .errors import EngineStopped
from .hookspecs.client import Health, Snapshot

if TYPE_CHECKING:
    from .flow import Accepted, FinishReason, Request, Written
    from .hookspecs.client import EngineClient, Listener


class Starting:
    """``starting`` until ``ready`` is called, and from then on the client given there."""

    def __init__(self) -> None:
        self._client: EngineClient | None = None
        self._listener: Listener | None = None
        self._drained = False
        self._lock = Lock()

    def ready(self, client: EngineClient) -> None:
        """The engine is there. If it was drained before it came, it goes at once."""
        with self._lock:
            if self._listener is not None:
                client.events(self._listener)
            self._client = client
            drained = self._drained
        if drained:
            client.drain(0.0)

    def submit(self, request: Request) -> Accepted:
        """See ``EngineClient.submit``; refused while there is no engine."""
        if self._client is None:
            raise EngineStopped("the model is being loaded; try again")
        return self._client.submit(request)

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """See ``EngineClient.cancel``."""
        if self._client is not None:
            self._client.cancel(request_id, reason)

    def events(self, listener: Listener) -> None:
        """See ``EngineClient.events``; kept for the engine to come."""
        with self._lock:
            self._listener = listener
            if self._client is not None:
                self._client.events(listener)

    def acknowledge(self, written: tuple[Written, ...]) -> None:
        """See ``EngineClient.acknowledge``."""
        if self._client is not None:
            self._client.acknowledge(written)

    def snapshot(self, request_id: str | None = None) -> Snapshot:
        """See ``EngineClient.snapshot``; empty while there is no engine."""
        if self._client is not None:
            return self._client.snapshot(request_id)
        return Snapshot(num_running=0, num_waiting=0, num_used_blocks=0, num_blocks=0)

    def health(self) -> Health:
        """See ``EngineClient.health``."""
        if self._client is not None:
            return self._client.health()
        state = "closed" if self._drained else "starting"
        return Health(state=state, alive=not self._drained, ready=False)

    def drain(self, timeout: float) -> bool:
        """See ``EngineClient.drain``."""
        with self._lock:
            self._drained = True
            client = self._client
        return True if client is None else client.drain(timeout)
