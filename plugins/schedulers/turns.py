"""One pass in the order of rank: running and waiting sequences take their turns together.

Policies with a service goal rank sequences, smallest first. Each step goes through what
runs and what waits in that order: whoever is first takes a piece, or starts, and where
room is short those at the end give way, as far as the policy allows.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import Grant, How, SequenceView, StepBuilder

from .moves import MAX_ASIDE


class Goal(Protocol):
    """What a policy wants."""

    def rank(self, sequence: SequenceView) -> Any:
        """Smaller goes first; comparable, and different for any two sequences."""

    def may_take(self, sequence: SequenceView, victim: SequenceView) -> bool:
        """Whether a waiting sequence may take the place of a running one."""

    def granted(self, sequence: SequenceView, grant: Grant, *, started: bool) -> None:
        """A sequence was scheduled."""


class Queue(Protocol):
    """What waits; ``first`` is of the smallest rank."""

    def first(self) -> SequenceView | None: ...
    def add(self, sequence: SequenceView) -> None: ...
    def remove(self, sequence_id: int) -> None: ...


class Line(Protocol):
    """What runs and has not had its turn in this step."""

    def __len__(self) -> int: ...
    def first(self) -> tuple[Any, SequenceView] | None:
        """Whose turn is next: the smallest rank, and whose it is."""

    def pop(self) -> None:
        """The first has its turn."""

    def from_end(self) -> Iterator[SequenceView]:
        """Those that give way, first those that give way first."""

    def leave(self, sequence: SequenceView) -> None:
        """It gave way."""


class RankedLine:
    """A line whose ranks stand still during a step."""

    def __init__(
        self, running: Iterable[SequenceView], rank: Callable[[SequenceView], Any]
    ) -> None:
        """Ranks differ, so sequences are never compared."""
        self._line = deque(sorted((rank(sequence), sequence) for sequence in running))

    def __len__(self) -> int:
        return len(self._line)

    def first(self) -> tuple[Any, SequenceView] | None:
        """The smallest rank, and whose it is."""
        return self._line[0] if self._line else None

    def pop(self) -> None:
        """The first has its turn."""
        self._line.popleft()

    def from_end(self) -> Iterator[SequenceView]:
        """Largest rank first."""
        return (sequence for _, sequence in reversed(self._line))

    def leave(self, sequence: SequenceView) -> None:
        """Those that give way are near the end."""
        place = next(n for n, pair in enumerate(reversed(self._line)) if pair[1] is sequence)
        del self._line[-1 - place]


class Turns:
    """One step's pass. Room is made by preempting with ``reason``; for a running sequence
    that lacks blocks, those behind it give way; stalled ones always come first."""

    def __init__(
        self,
        build: StepBuilder,
        goal: Goal,
        queue: Queue,
        line: Line,
        limits: Limits,
        *,
        max_chunk: int,
        how: How,
        reason: str,
    ) -> None:
        """:param max_chunk: tokens of one prompt in this step at most"""
        self._build = build
        self._goal = goal
        self._queue = queue
        self._line = line
        self._limits = limits
        self._max_chunk = max_chunk
        self._how: How = how
        self._reason = reason
        self._stalled = list(build.stalled)
        self._aside: list[SequenceView] = []
        self._open = True
        """Whether starting somebody is still worth a try."""

    def play(self, ahead: Iterable[SequenceView] = ()) -> None:
        """Give out the step's tokens.

        :param ahead: waiting sequences that are tried before anybody else's turn
        """
        build, line = self._build, self._line
        for sequence in ahead:
            self._start(sequence)
        bar = self._bar()
        while build.tokens_left > 0:
            running = line.first()
            if running is None or (bar is not None and bar < running[0]):
                waiting = self._queue.first() if self._open else None
                if waiting is None and running is None:
                    break
                bar = None if waiting is None else self._goal.rank(waiting)
                if waiting is not None and (running is None or bar < running[0]):
                    self._open = self._start(waiting)
                    bar = self._bar()
                    continue
            if running is not None:
                line.pop()
                self._run(running[1])
        for sequence in self._aside:
            self._queue.add(sequence)

    def _bar(self) -> Any:
        """The rank that whoever runs must be below to go first; ``None``: nobody waits.
        It may be out of date: ranks do not fall during a step."""
        waiting = self._queue.first() if self._open else None
        return None if waiting is None else self._goal.rank(waiting)

    def _piece(self) -> int:
        """Tokens of the next turn at most. Every running sequence behind keeps one, so
        that decodes ride along with prompts, unless that took more than half the step."""
        left = self._build.tokens_left
        return min(self._max_chunk, max(left - len(self._line), left // 2, 1))

    def _run(self, sequence: SequenceView) -> None:
        grant = self._build.run(sequence, self._piece())
        self._open = self._open and grant.reason != "blocks"
        while grant.reason == "blocks" and self._evict():
            grant = self._build.run(sequence, self._piece())
        if grant:
            self._goal.granted(sequence, grant, started=False)

    def _evict(self) -> bool:
        """One more sequence gives its blocks to the one whose turn it is."""
        while self._stalled:
            if self._build.preempt(self._stalled.pop(), self._how):
                return True
        while (victim := next(self._line.from_end(), None)) is not None:
            self._line.leave(victim)
            if self._build.preempt(victim, self._how):
                return True
        return False

    def _start(self, sequence: SequenceView) -> bool:
        """:return: whether the next may be tried"""
        if not self._make_room(sequence):
            self._build.wait(sequence, "blocks")
            return False
        grant = self._build.start(sequence, self._piece())
        aside = grant.reason == "prefix" and len(self._aside) < MAX_ASIDE
        if grant or aside:
            self._queue.remove(sequence.id)
        if grant:
            self._goal.granted(sequence, grant, started=True)
        elif aside:
            self._aside.append(sequence)
        return bool(grant) or aside

    def _make_room(self, sequence: SequenceView) -> bool:
        """Take seat and blocks for all known tokens from others if they are not free.

        :return: whether the blocks are free now, or nobody runs. Nobody gives way for
            nothing: without enough of those that may be taken from, none is.
        """
        build = self._build
        if build.seats_left == self._limits.max_sequences:
            return True
        missing = build.needed(sequence) - build.blocks_left
        if missing <= 0 and build.seats_left > 0:
            return True
        victims: list[SequenceView] = []
        for victim in self._candidates(sequence):
            victims.append(victim)
            missing -= self._blocks(victim.num_computed)
            if missing <= 0:
                break
        if missing > 0:
            return False
        for victim in victims:
            self._give_way(victim)
        return build.blocks_left >= build.needed(sequence)

    def _candidates(self, sequence: SequenceView) -> Iterator[SequenceView]:
        for victim in [*self._stalled, *self._line.from_end()]:
            if self._goal.may_take(sequence, victim):
                yield victim

    def _give_way(self, victim: SequenceView) -> None:
        if victim in self._stalled:
            self._stalled.remove(victim)
        else:
            self._line.leave(victim)
        self._build.preempt(victim, self._how, self._reason)

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._limits.block_size)
