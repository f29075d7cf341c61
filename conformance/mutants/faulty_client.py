"""The right client that client mutants are made from."""

import msgspec

from enginebay.flow import Event, EventBatch
from enginebay.hookspecs.client import Listener
from enginebay.plugins.transports.inproc import Inproc


class Faulty(Inproc):
    """In process, with a say over each batch."""

    def events(self, listener: Listener) -> None:
        super().events(lambda batch: self.deliver(batch, listener))

    def deliver(self, batch: EventBatch, listener: Listener) -> None:
        """Hand on what ``changed`` made of the events."""
        events = self.changed(batch.events)
        if events:
            listener(msgspec.structs.replace(batch, events=events))

    def changed(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        """All of them, as they are."""
        return events
