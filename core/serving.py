"""Serving: a stack's engine behind its transports."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .assembler import no_progress
from .assembly import Assembly, assemble
from .errors import StackError
from .hookspecs.client import ClientContext
from .hookspecs.families import SLOTS
from .hookspecs.transport import TransportContext
from .probe import probe

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
    """Assemble, probe and start an engine, and build its transports.

    :raises StackError: the stack names no transport, or the probe fails
    """
    if not stack.chain("transports"):
        raise StackError(f'stack {stack.name!r} has no transports; add transports = ["http"]')
    assembly = assemble(stack, progress)
    probe(assembly)
    assembly.engine.start()
    transports = [_transport(assembly, entry) for entry in stack.chain("transports")]
    return Serving(assembly, transports)


def _transport(assembly: Assembly, entry: Entry) -> Transport:
    """Each transport has a client of its own: a client has one listener."""
    client = assembly.registry.build(
        SLOTS["client"], assembly.stack.one("client"), ClientContext(engine=assembly.engine)
    )
    context = TransportContext(
        clients={assembly.name: client}, sinks=assembly.sinks, version=assembly.version
    )
    transport: Transport = assembly.registry.build(SLOTS["transports"], entry, context)
    return transport
