"""A connection that a handler can drop, and that notices a slow reader early."""

import asyncio
import contextlib
import socket
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

UNSENT_BYTES: Final = 16384
"""Bytes of one connection that may wait in the kernel. What it holds counts as written,
and left alone it holds megabytes: a reader that takes nothing would go unnoticed."""
BACKLOG: Final = 2048


class Connection(AutoHTTPProtocol):  # type: ignore[valid-type,misc]
    """Hands its transport to the application as ``scope["state"]["connection"]``."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        super().connection_made(transport)
        self.app_state: dict[str, Any] = {**self.app_state, "connection": transport}


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    :raises OSError: the address can't be bound
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    sock.setblocking(False)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return sock


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: the transport has its own."""

    def capture_signals(self) -> Any:
        """What ``serve`` enters around its work."""
        return contextlib.nullcontext()
