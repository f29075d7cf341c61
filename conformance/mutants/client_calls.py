"""Clients that get one call wrong: what is asked, acknowledged, cancelled or drained."""

import threading

import msgspec

from enginebay.errors import RequestRefused
from enginebay.flow import Accepted, Event, FinishReason, Request, Written
from enginebay.hookspecs.client import Health, Snapshot

from .faulty_client import Faulty


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
