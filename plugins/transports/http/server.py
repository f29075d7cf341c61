"""The transport itself: serve, drain, stop."""

import asyncio
import os
import signal
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvicorn

from enginebay.errors import PluginError, StackError
from enginebay.hookspecs.transport import TransportContext

from .app import build_app
from .connection import BACKLOG, Connection, Server, listen
from .drain import drain_all
from .gate import starting
from .gateway import Bounds, Gateway
from .keyring import KeyRing

if TYPE_CHECKING:
    from . import Options

FLUSH_SECONDS: Final = 5.0
"""What answers get to write their last events, once the engines are drained."""

log = structlog.get_logger("enginebay.http")


class HttpTransport:
    """Serves engine clients over HTTP.

    On the way out new requests get 503, those under way have ``shutdown_timeout``
    seconds, then end with an error event. A second signal ends them at once.
    """

    def __init__(self, options: "Options", context: TransportContext) -> None:
        missing = {"sse", "json"} - set(context.sinks)
        if missing:
            names = " and ".join(sorted(missing))
            raise PluginError(f"http needs the sinks sse and json: add {names} to 'sinks'")
        self._options = options
        bounds = Bounds(options.max_pending, options.encode_threads, options.slow_reader_seconds)
        keyring = KeyRing(Path(options.keys).expanduser()) if options.keys else None
        self._gateway = Gateway(context.clients, context.sinks, bounds)
        self._app = build_app(self._gateway, options, context.version, keyring)
        self.started = threading.Event()
        """Set once connections are accepted."""
        self.port = options.port
        """The port listened at; known when ``started`` is set, if 0 was asked for."""
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._forced = asyncio.Event()
        self._stop_asked = False

    def open(self) -> None:
        """Listen and answer from now on, in a thread; requests are refused until the
        clients are ready.

        :raises StackError: the address can't be bound
        """
        options = self._options
        try:
            sock = listen(options.host, options.port)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            msg = (
                f"http: can't listen at {options.host} port {options.port}: {why}; "
                "choose another 'host' or 'port'"
            )
            raise StackError(msg) from error
        self.port = sock.getsockname()[1]
        self._thread = threading.Thread(
            target=self._run, args=(sock,), name="http-loop", daemon=True
        )
        self._thread.start()
        while not self.started.wait(0.05) and not self._over.is_set():
            continue

    def serve(self) -> None:
        """Serve until a signal or ``stop``; blocks. Every client is drained then.

        :raises StackError: the address can't be bound
        """
        if self._thread is None:
            self.open()
        before = self._catch_signals()
        try:
            self._over.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ask ``serve`` to end; from any thread. Asked twice, it does not wait."""
        self._stop_asked = True
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._ask)

    def _run(self, sock: socket.socket) -> None:
        try:
            with sock:
                asyncio.run(self._serve(sock))
        except BaseException as error:  # noqa: BLE001 (it is raised again by ``serve``)
            self._failure = error
        finally:
            self._over.set()

    async def _serve(self, sock: socket.socket) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._gateway.start(loop)
        server = Server(self._config())
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        serving.add_done_callback(lambda _: self._stopping.set())
        watching = asyncio.create_task(self._gateway.watch())
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        self.started.set()
        log.info("listening", host=self._options.host, port=self.port)
        if self._stop_asked:
            self._ask()
        try:
            await self._stopping.wait()
            await self._drain()
        finally:
            server.should_exit = True
            server.force_exit = self._forced.is_set()
            await serving
            watching.cancel()
            self._gateway.stop()

    async def _drain(self) -> None:
        """Let what runs finish, or end it with an error; then let it be written."""
        gateway = self._gateway
        timeout = self._options.shutdown_timeout
        # A start that failed has its own message, and nothing to drain.
        tell = log.debug if starting(gateway.clients) else log.info
        gateway.draining = True
        tell("draining", requests=gateway.num_open, timeout=timeout)
        finished = await drain_all(gateway.clients.values(), timeout, self._forced)
        tell("drained", in_time=finished)
        if self._forced.is_set():
            gateway.fail_all("the server is shutting down")
        loop = asyncio.get_running_loop()
        until = loop.time() + FLUSH_SECONDS
        while gateway.num_open and loop.time() < until:
            await asyncio.sleep(0.01)

    def _ask(self) -> None:
        """On the loop: the first time drain, the second time end at once."""
        (self._forced if self._stopping.is_set() else self._stopping).set()

    def _catch_signals(self) -> dict[signal.Signals, Any]:
        """:return: the handlers that were there before"""
        if threading.current_thread() is not threading.main_thread():
            return {}  # only the main thread can; the program then calls ``stop``
        numbers = (signal.SIGINT, signal.SIGTERM)
        return {number: signal.signal(number, lambda *_: self.stop()) for number in numbers}

    def _config(self) -> uvicorn.Config:
        return uvicorn.Config(
            self._app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=int(FLUSH_SECONDS),
        )
