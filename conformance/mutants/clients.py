"""Clients with one fault each: here those that tell wrongly, and the list of all."""

import threading
from collections.abc import Callable
from typing import ClassVar, Final

import msgspec

from enginebay.engine import Engine
from enginebay.flow import Delta, Ended, Event, EventBatch, Usage
from enginebay.hookspecs.client import Listener

from .client_calls import (
    AlwaysHealthy,
    CancelsForItsOwnReason,
    DrainsAtOnce,
    DrainsForever,
    ForgetsTheSeed,
    IgnoresWindows,
    KeepsItsFirstSnapshot,
    LosesCancels,
    NeverAcknowledges,
    ReplacesIds,
    SendsObjects,
    SwallowsRefusals,
)
from .faulty_client import Faulty
from .mutant import Mutant


class DropsTheEnd(Faulty):
    """Nobody hears that a request ended."""

    def changed(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        return tuple(event for event in events if not isinstance(event, Ended))


class EndsTwice(Faulty):
    """The terminal event comes twice."""

    def changed(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        return tuple(e for event in events for e in (event,) * (1 + isinstance(event, Ended)))


class Reorders(Faulty):
    """The events of a step come backwards."""

    def changed(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        return events[::-1]


class LosesAToken(Faulty):
    """Every fourth batch loses its first delta."""

    num_batches = 0

    def changed(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        self.num_batches += 1
        lost = self.num_batches % 4 == 0 and isinstance(events[0], Delta)
        return events[1:] if lost else events


class SplitsSteps(Faulty):
    """The listener is woken for every event."""

    def deliver(self, batch: EventBatch, listener: Listener) -> None:
        for event in batch.events:
            listener(msgspec.structs.replace(batch, events=(event,)))


class TellsFromAnyThread(Faulty):
    """Each batch comes from a thread of its own."""

    def deliver(self, batch: EventBatch, listener: Listener) -> None:
        thread = threading.Thread(target=listener, args=(batch,))
        thread.start()
        thread.join()


class RaisesWhileTelling(Faulty):
    """Its own code breaks on the engine's thread, after a while."""

    num_batches = 0

    def deliver(self, batch: EventBatch, listener: Listener) -> None:
        self.num_batches += 1
        if self.num_batches > 5:
            raise RuntimeError("a listener broke")
        listener(batch)


class LosesUsage(Faulty):
    """The terminal event counts nothing."""

    def changed(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        none = Usage(prompt_tokens=0, completion_tokens=0)
        return tuple(
            msgspec.structs.replace(event, usage=none) if isinstance(event, Ended) else event
            for event in events
        )


class TellsEverybody(Faulty):
    """Every client hears of every request."""

    listeners: ClassVar[list[Listener]] = []

    def events(self, listener: Listener) -> None:
        self.listeners.append(listener)
        super().events(listener)

    def deliver(self, batch: EventBatch, listener: Listener) -> None:
        for each in self.listeners[-2:]:
            each(batch)


def _mutant(fault: str, make: Callable[[Engine], Faulty], caught_by: str) -> Mutant:
    return Mutant(fault, make, f"client/{caught_by}")


CLIENT_MUTANTS: Final = (
    _mutant("ends twice", EndsTwice, "one-end"),
    _mutant("reorders events", Reorders, "order"),
    _mutant("loses a token", LosesAToken, "order"),
    _mutant("loses the usage", LosesUsage, "one-end"),
    _mutant("splits steps", SplitsSteps, "one-batch"),
    _mutant("tells from any thread", TellsFromAnyThread, "one-thread"),
    _mutant("loses cancels", LosesCancels, "cancel"),
    _mutant("cancels for a reason of its own", CancelsForItsOwnReason, "cancel"),
    _mutant("never acknowledges", NeverAcknowledges, "window"),
    _mutant("ignores windows", IgnoresWindows, "slow-reader"),
    _mutant("swallows refusals", SwallowsRefusals, "refused"),
    _mutant("replaces ids", ReplacesIds, "duplicate"),
    _mutant("forgets the seed", ForgetsTheSeed, "accepted"),
    _mutant("tells everybody", TellsEverybody, "two-clients"),
    _mutant("keeps its first snapshot", KeepsItsFirstSnapshot, "snapshot"),
    _mutant("is always healthy", AlwaysHealthy, "failure"),
    _mutant("drains at once", DrainsAtOnce, "drain"),
    _mutant("claims to have drained", DrainsForever, "drain-cuts"),
    _mutant("sends objects", SendsObjects, "snapshot"),
    _mutant("drops the end", DropsTheEnd, "one-end"),
    _mutant("raises while telling", RaisesWhileTelling, "one-end"),
)
