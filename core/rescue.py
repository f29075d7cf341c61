"""Liveness: what the core does when a scheduler gets nowhere although work exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from .sequence import State

if TYPE_CHECKING:
    from .build import StepBuilder
    from .flow import StepPlan, StepResult
    from .hookspecs.scheduler import Scheduler
    from .roster import Roster
    from .sequence import Sequence

PATIENCE_SECONDS = 1.0
"""After so long without a plan the core runs or starts the oldest sequence itself."""

log = structlog.get_logger(__name__)


class Rescue:
    """Makes room, or sees to it that the oldest gets on, so that no policy can livelock.

    - Every holder is blocked for memory: the youngest is preempted, stalled ones first;
      one that holds the pool alone and still can't go on ends with reason ``capacity``.
    - The policy plans nothing for longer than the patience: the oldest is favoured.
    - Plans come out and nothing comes of them: once more positions than the pool holds
      were computed without one token drawn or sequence ended, some were computed twice
      for nothing. The oldest is favoured.

    A favoured sequence is scheduled first in every step until it ends, at the cost of
    others' blocks if need be; the policy disposes of the rest.
    """

    def __init__(self, roster: Roster, scheduler: Scheduler, pool: int) -> None:
        """:param pool: positions that the KV pool holds"""
        self._roster = roster
        self._scheduler = scheduler
        self._pool = pool
        self._since: float | None = None
        """When the policy began to plan nothing."""
        self._left = 0
        """Tokens of the step that were the policy's to give."""
        self._fruitless = 0
        """Positions computed since a token was drawn or a sequence ended."""
        self._num_ended = 0
        self._favoured: Sequence | None = None

    def begin(self, build: StepBuilder) -> None:
        """Before the policy plans: schedule the favoured sequence, if there is one."""
        if self._fruitless > self._pool:
            self._fruitless = 0
            self._favour([*self._roster.seats.values(), *self._queued()])
        if self._favoured is not None:
            if self._favoured.state is State.ENDED or self._favoured.stalled:
                self._favoured = None
            else:
                self._force(build, self._favoured)
        self._left = build.tokens_left

    def settled(self, build: StepBuilder) -> None:
        """After the policy planned: whether it did anything."""
        if build.tokens_left < self._left:
            self._since = None

    def committed(self, plan: StepPlan, result: StepResult) -> None:
        """Note what came of a step."""
        ended = self._roster.num_ended
        fruitful = ended > self._num_ended or any(output.token_ids for output in result.outputs)
        self._fruitless = 0 if fruitful else self._fruitless + plan.num_tokens
        self._num_ended = ended

    def attempt(self, build: StepBuilder) -> None:
        """Called with an empty plan while nothing is in flight."""
        holders = list(self._roster.seats.values())
        able = [s for s in holders if not s.stalled]
        candidates = able or self._queued()
        if not candidates:
            self._since = None
            return
        self._since = build.now if self._since is None else self._since
        short = [s for s in candidates if build.lacks_room(s)]
        held_back = [s for s in candidates if build.waits.get(s.id) == "blocks"]
        if short and build.preemptions:
            return  # the policy made room itself and may use it in the next step
        if (short or held_back) and (len(holders) > 1 or (holders and not able)):
            build.preempt(min(holders, key=_yields))
        elif short:
            self._end(build, short[0])
        elif build.now - self._since > PATIENCE_SECONDS:
            self._favour(candidates)
            if self._favoured is not None:
                self._force(build, self._favoured)

    def _favour(self, sequences: list[Sequence]) -> None:
        able = [s for s in sequences if not s.stalled]
        self._favoured = min(able, key=lambda s: (s.arrival, s.id), default=None)
        if self._favoured is not None:
            log.warning("the scheduler gets nowhere", favoured=self._favoured.request_id)

    def _force(self, build: StepBuilder, sequence: Sequence) -> None:
        """Schedule a sequence, whatever the policy thinks of it; others give way."""
        build.protected = sequence
        while not self._push(build, sequence) and build.lacks_room(sequence):
            others = [s for s in self._roster.seats.values() if s is not sequence]
            if not others:
                self._end(build, sequence)
                return
            if not build.preempt(min(others, key=_yields)):
                build.hold()
                return

    def _end(self, build: StepBuilder, sequence: Sequence) -> None:
        """End a sequence that lacks memory although nobody else holds any."""
        sequence.cut = ("capacity", build.shortage(sequence))
        self._roster.finish(sequence, "capacity")

    def _queued(self) -> list[Sequence]:
        """Sequences that wait for a seat, and not for their request's first choice."""
        return [
            s
            for s in self._roster.sequences.values()
            if s.state is State.WAITING and not s.stalled and s not in s.group.deferred
        ]

    def _push(self, build: StepBuilder, sequence: Sequence) -> bool:
        """Run or start a sequence, whatever the policy thinks of it."""
        if sequence.state is State.RUNNING:
            return bool(build.run(sequence))
        started = bool(build.start(sequence))
        if started:
            self._scheduler.remove(sequence.id)
        return started


def _yields(sequence: Sequence) -> tuple[bool, bool, float, int]:
    """Who gives way first: who can, stalled ones, then the youngest."""
    in_flight = sequence.num_scheduled > 0
    return in_flight, not sequence.stalled, -sequence.arrival, -sequence.id
