"""Liveness: what the core does when a scheduler plans nothing although work exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .sequence import State

if TYPE_CHECKING:
    from .build import StepBuilder
    from .hookspecs.scheduler import Scheduler
    from .roster import Roster
    from .sequence import Sequence

PATIENCE_SECONDS = 1.0
"""After so long without a plan the core runs or starts the oldest sequence itself."""


class Rescue:
    """Makes room, or starts the oldest, so that no policy can livelock.

    With every holder blocked for memory the youngest is preempted, stalled ones first;
    one that holds the pool alone and still can't go on ends with reason ``capacity``.
    """

    def __init__(self, roster: Roster, scheduler: Scheduler) -> None:
        self._roster = roster
        self._scheduler = scheduler
        self._since: float | None = None
        """When plans began to come out empty."""

    def settled(self) -> None:
        """A plan came out: patience starts anew."""
        self._since = None

    def attempt(self, build: StepBuilder) -> None:
        """Called with an empty plan while nothing is in flight."""
        roster = self._roster
        holders = list(roster.seats.values())
        able = [s for s in holders if not s.stalled]
        queued = [
            s
            for s in roster.sequences.values()
            if s.state is State.WAITING and s not in s.group.deferred
        ]
        if not able and not queued:
            self._since = None
            return
        self._since = build.now if self._since is None else self._since
        short = [s for s in able or queued if build.lacks_room(s)]
        if short and (len(holders) > 1 or (holders and not able)):
            build.preempt(min(holders, key=lambda s: (not s.stalled, -s.arrival, -s.id)))
        elif short:
            roster.finish(short[0], "capacity")
        elif build.now - self._since > PATIENCE_SECONDS:
            self._push(build, able or queued)

    def _push(self, build: StepBuilder, sequences: list[Sequence]) -> None:
        """Run or start the oldest sequence, whatever the policy thinks of it."""
        oldest = min(sequences, key=lambda s: (s.arrival, s.id))
        if oldest.state is State.RUNNING:
            build.run(oldest)
        elif build.start(oldest):
            self._scheduler.remove(oldest.id)
        self._since = build.now
