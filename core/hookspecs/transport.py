"""Transport: serves a mapping *model name -> EngineClient*, never an engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .markers import hookspec

if TYPE_CHECKING:
    from .client import EngineClient
    from .sink import SinkKind


class Transport(Protocol):
    """Owns sockets, parsing and identity; reports each written token."""

    def serve(self) -> None:
        """Serve until told to stop (a signal, or ``stop``); blocks. On the way out
        every client is drained."""

    def stop(self) -> None:
        """Ask ``serve`` to end; from any thread."""


@runtime_checkable
class Listening(Protocol):
    """Optional: a transport that can answer while the model is still being loaded."""

    def open(self) -> None:
        """Listen from now on, without blocking; ``serve`` follows, or ``stop`` and
        ``serve`` when the load fails. Until then the clients' state is ``starting``.

        :raises StackError: the address can't be had
        """


@dataclass(frozen=True)
class TransportContext:
    """What a transport is built with."""

    clients: "Mapping[str, EngineClient]"
    sinks: "Mapping[str, SinkKind]"
    version: str = ""
    """The service version; empty where it is known only once the model is loaded:
    ``Snapshot.info`` has it then."""


@hookspec(firstresult=True)
def enginebay_transport(options: Any, context: TransportContext) -> Transport:  # type: ignore[empty-body]
    """Build a transport. Called once, before the model is loaded: its clients take no
    requests until then.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: engine clients by model name, sinks by name, service version
    """
