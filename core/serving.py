"""Serving: a stack's engine behind its transports."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .assembler import Assembler, no_progress
from .assembly import Assembly, assemble
from .errors import StackError
from .hookspecs.client import ClientContext
from .hookspecs.families import SLOTS
from .hookspecs.transport import Listening, TransportContext
from .identity import served_name
from .probe import probe
from .starting import Starting

if TYPE_CHECKING:
    from .hookspecs.source import Progress
    from .hookspecs.transport import Transport
    from .stack import Entry, Stack


class Serving:
    """A started engine and the transports that serve it."""

    def __init__(self, assembly: Assembly, transports: list[Transport]) -> None:
        self.assembly = assembly
        self.transports = transports

    def told(self) -> str:
        """One line on what was probed and how long the start took."""
        seconds = sum(self.assembly.seconds.values())
        checked = "validated" if self.assembly.engine.validated else "not validated: no record"
        return f"started in {seconds:.1f} s, probe {checked}"

    def wait(self) -> int:
        """Serve until every transport has stopped. :return: exit status"""
        *others, main = self.transports
        threads = [threading.Thread(target=t.serve, daemon=True) for t in others]
        for thread in threads:
            thread.start()
        main.serve()  # in the main thread, where signals arrive
        for transport in others:
            transport.stop()
        for thread in threads:
            thread.join()
        return 1 if self.assembly.engine.state == "failed" else 0


def serve(stack: Stack, progress: Progress = no_progress) -> Serving:
    """Build the transports, then load, probe and start their engine.

    Those that can listen do so at once and say that they are starting: a taken port or a
    wrong key file is told before minutes of loading, and who asks meanwhile is answered.

    :raises StackError: the stack names no transport, or the probe fails
    """
    if not stack.chain("transports"):
        raise StackError(f'stack {stack.name!r} has no transports; add transports = ["http"]')
    build = Assembler(stack, progress)
    build.load_all()
    pairs = [_transport(build, entry) for entry in stack.chain("transports")]
    listening: list[Transport] = []
    try:
        for transport, _ in pairs:
            if isinstance(transport, Listening):
                transport.open()
                listening.append(transport)
        assembly = _started(build, progress, [client for _, client in pairs])
    except BaseException:
        for transport in listening:
            transport.stop()
            transport.serve()  # returns once it has let go of its address
        raise
    return Serving(assembly, [transport for transport, _ in pairs])


def _transport(build: Assembler, entry: Entry) -> tuple[Transport, Starting]:
    """Each transport has a client of its own: a client has one listener."""
    options = build.stack.engine
    client = Starting()
    name = options.served_name or served_name(options.model)
    context = TransportContext(clients={name: client}, sinks=build.sinks)
    return build.registry.build(SLOTS["transports"], entry, context), client


def _started(build: Assembler, progress: Progress, clients: list[Starting]) -> Assembly:
    assembly = assemble(build.stack, progress, build)
    probe(assembly)
    assembly.engine.start()
    for client in clients:
        client.ready(build.one("client", ClientContext(engine=assembly.engine)))
    return assembly
