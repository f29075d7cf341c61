"""Clients with one fault each, wrapped around a right one."""

import threading
from collections.abc import Callable
from typing import ClassVar, Final

import msgspec

from enginebay.engine import Engine
from enginebay.errors import RequestRefused
from enginebay.flow import (
    Accepted,
    Delta,
    Ended,
    Event,
    EventBatch,
    FinishReason,
    Request,
    Usage,
    Written,
)
from enginebay.hookspecs.client import Health, Listener, Snapshot
from enginebay.plugins.transports.inproc import Inproc

from .mutant import Mutant


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


class LosesCancels(Faulty):
    """Cancelling does nothing."""

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """Nothing."""


class CancelsForItsOwnReason(Faulty):
    """The reason of a cancellation is lost."""

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        super().cancel(request_id)


class NeverAcknowledges(Faulty):
    """The engine never hears what was written."""

    def acknowledge(self, written: tuple[Written, ...]) -> None:
        """Nothing."""


class IgnoresWindows(Faulty):
    """Every reader is taken to be quick."""

    def submit(self, request: Request) -> Accepted:
        return super().submit(msgspec.structs.replace(request, window=0))


class SwallowsRefusals(Faulty):
    """A refused request looks like an accepted one."""

    def submit(self, request: Request) -> Accepted:
        try:
            return super().submit(request)
        except RequestRefused:
            return Accepted(request_id=request.id, num_prompt_tokens=0, seed=0, max_tokens=0)


class ReplacesIds(Faulty):
    """A request under way is cancelled by another of its id."""

    def submit(self, request: Request) -> Accepted:
        self.cancel(request.id)
        unique = f"{request.id}.{id(request)}"
        accepted = super().submit(msgspec.structs.replace(request, id=unique))
        return msgspec.structs.replace(accepted, request_id=request.id)

    def changed(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        return tuple(
            msgspec.structs.replace(event, request_id=event.request_id.partition(".")[0])
            for event in events
        )


class ForgetsTheSeed(Faulty):
    """The drawn seed is not reported."""

    def submit(self, request: Request) -> Accepted:
        return msgspec.structs.replace(super().submit(request), seed=0)


class TellsEverybody(Faulty):
    """Every client hears of every request."""

    listeners: ClassVar[list[Listener]] = []

    def events(self, listener: Listener) -> None:
        self.listeners.append(listener)
        super().events(listener)

    def deliver(self, batch: EventBatch, listener: Listener) -> None:
        for each in self.listeners[-2:]:
            each(batch)


class KeepsItsFirstSnapshot(Faulty):
    """Counts never change."""

    kept: Snapshot | None = None

    def snapshot(self, request_id: str | None = None) -> Snapshot:
        self.kept = self.kept or super().snapshot(request_id)
        return self.kept


class AlwaysHealthy(Faulty):
    """Whatever happens, requests are welcome."""

    def health(self) -> Health:
        return Health(state="ready", alive=True, ready=True)


class DrainsAtOnce(Faulty):
    """Draining does not wait."""

    def drain(self, timeout: float) -> bool:
        return super().drain(0.0)


class DrainsForever(Faulty):
    """Draining always says that everything was finished."""

    def drain(self, timeout: float) -> bool:
        super().drain(timeout)
        return True


class SendsObjects(Faulty):
    """A snapshot holds something that can't leave the process."""

    def snapshot(self, request_id: str | None = None) -> Snapshot:
        snapshot = super().snapshot(request_id)
        lock: object = threading.Lock()
        return msgspec.structs.replace(snapshot, info={**snapshot.info, "lock": lock})


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
