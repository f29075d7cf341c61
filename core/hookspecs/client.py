"""Client: carries the engine's edge to whoever stands outside."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..flow import Accepted, EventBatch, FinishReason, Frozen, Request, Written
from .markers import hookspec

if TYPE_CHECKING:
    from ..engine import Engine

Listener = Callable[[EventBatch], None]


class Health(Frozen, frozen=True, kw_only=True):
    """Whether requests can be served."""

    state: str
    """``starting``, ``ready``, ``draining``, ``failed`` or ``closed``."""
    alive: bool
    ready: bool
    validated: bool = False
    """The readiness probe matched a recorded answer."""
    message: str = ""


class Snapshot(Frozen, frozen=True, kw_only=True):
    """The engine's state in one piece; every value is plain data."""

    num_running: int
    """Sequences holding a seat."""
    num_waiting: int
    """Requests or choices not yet started, those being tokenized included."""
    num_used_blocks: int
    num_blocks: int
    info: dict[str, Any] = {}
    """Model, limits, stack, service version, memory lines."""
    metrics: str = ""
    """Prometheus text format, empty without a metrics observer."""
    timeline: tuple[dict[str, Any], ...] = ()
    """Only when asked for by request id."""
    tenant: str = ""
    """Whose request it is; only when asked for by request id."""
    ledger: dict[str, Any] = {}
    """Memory by owner, see ``enginebay.ledger``."""


class EngineClient(Protocol):
    """The engine's edge: all that a transport or a program ever sees of an engine.

    Everything that crosses it is plain data, so a thread, another process and a
    recorded replay look the same from outside. Methods may be called from any
    thread and, but for ``submit`` (which tokenizes) and ``drain``, return at once.
    """

    def submit(self, request: Request) -> Accepted:
        """Put a request in. Exactly one ``Ended`` event follows an ``Accepted``.

        :raises InvalidRequest: wrong in itself; names the field
        :raises RequestRefused: turned away by admission
        :raises EngineStopped: the engine takes no requests
        """

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """End a request, wherever it is; unknown or ended ids are ignored."""

    def events(self, listener: Listener) -> None:
        """Deliver the events of this client's requests, one batch a step, in order.

        ``listener`` is called from the engine's thread: it must return at once.
        One listener a client.
        """

    def acknowledge(self, written: tuple[Written, ...]) -> None:
        """Report tokens as written to their reader."""

    def snapshot(self, request_id: str | None = None) -> Snapshot: ...
    def health(self) -> Health: ...
    def drain(self, timeout: float) -> bool:
        """Refuse new requests, wait for the others, then close; blocks.

        What is unfinished after ``timeout`` seconds ends with an error event.
        :return: True when everything finished in time
        """


@dataclass(frozen=True)
class ClientContext:
    """What a client is built with."""

    engine: "Engine"


@hookspec(firstresult=True)
def enginebay_client(options: Any, context: ClientContext) -> EngineClient:  # type: ignore[empty-body]
    """Build the client through which everything outside talks to an engine.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: the engine it carries
    """
