"""Adversity: an allocator that refuses at random, and a policy that preempts at random."""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from enginebay.flow import TokenIds
from enginebay.hookspecs.allocator import (
    Allocator,
    Match,
    PrefixCaching,
    Reservation,
    Shortfall,
)
from enginebay.hookspecs.scheduler import Scheduler, SequenceView, StepBuilder

from .soak_world import HOWS

if TYPE_CHECKING:
    from enginebay.conformance.harness import Harness


class Refusing:
    """Says now and then that a block is missing. Never to a sequence that holds the pool
    alone: for that one it would mean that the whole pool is too small."""

    def __init__(self, inner: Allocator, rate: float, noise: random.Random) -> None:
        self.inner = inner
        self.num_refused = 0
        self._rate = rate
        self._noise = noise
        self._holders: set[int] = set()

    @property
    def num_blocks(self) -> int:
        """The pool's."""
        return self.inner.num_blocks

    @property
    def num_free(self) -> int:
        """As it is."""
        return self.inner.num_free

    def match(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> Match:
        """As it is."""
        match = self.inner.match(sequence_id, identity, token_ids)
        if match.num_tokens:
            self._holders.add(sequence_id)
        return match

    def reserve(self, sequence_id: int, start: int, end: int) -> Reservation | Shortfall:
        """Refused at random, while somebody else holds blocks."""
        others = len(self._holders) - (sequence_id in self._holders)
        if others and self._noise.random() < self._rate:
            self.num_refused += 1
            return Shortfall(missing=1)
        answer = self.inner.reserve(sequence_id, start, end)
        if isinstance(answer, Reservation):
            self._holders.add(sequence_id)
        return answer

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> Match:
        """As it is."""
        match = self.inner.fork(parent_id, child_id, num_tokens)
        if match.num_tokens:
            self._holders.add(child_id)
        return match

    def trim(self, sequence_id: int, num_tokens: int) -> None:
        """As it is."""
        self.inner.trim(sequence_id, num_tokens)

    def publish(self, sequence_id: int, token_ids: Sequence[int], num_tokens: int) -> None:
        """As it is."""
        self.inner.publish(sequence_id, token_ids, num_tokens)

    def free(self, sequence_id: int) -> None:
        """As it is."""
        self._holders.discard(sequence_id)
        self.inner.free(sequence_id)

    def check_integrity(self) -> None:
        """As it is."""
        self.inner.check_integrity()


class RefusingCache(Refusing):
    """The same around an allocator that keeps prefixes."""

    @property
    def _cache(self) -> PrefixCaching:
        return cast("PrefixCaching", self.inner)

    @property
    def num_cached(self) -> int:
        """As it is."""
        return self._cache.num_cached

    @property
    def num_evicted(self) -> int:
        """As it is."""
        return self._cache.num_evicted

    def pending(self, sequence_id: int, identity: bytes, token_ids: TokenIds) -> int:
        """As it is."""
        return self._cache.pending(sequence_id, identity, token_ids)


def refusing(inner: Allocator, rate: float, noise: random.Random) -> Allocator:
    """An allocator that refuses at random; ``rate`` 0: the allocator itself."""
    if not rate:
        return inner
    kind = RefusingCache if isinstance(inner, PrefixCaching) else Refusing
    return kind(inner, rate, noise)


class Jostling:
    """A policy in whose steps a running sequence is preempted now and then, before it
    plans or after."""

    def __init__(self, inner: Scheduler, rate: float, noise: random.Random) -> None:
        self.inner = inner
        self.num_preempted = 0
        self._rate = rate
        self._noise = noise

    def add(self, sequence: SequenceView) -> None:
        """As it is."""
        self.inner.add(sequence)

    def plan(self, build: StepBuilder) -> None:
        """Push somebody out, and let the policy plan."""
        pushes = self._noise.random() < self._rate
        early = self._noise.random() < 0.5
        if pushes and early:
            self._push(build)
        self.inner.plan(build)
        if pushes and not early:
            self._push(build)

    def remove(self, sequence_id: int) -> None:
        """As it is."""
        self.inner.remove(sequence_id)

    def num_waiting(self) -> int:
        """As it is."""
        return self.inner.num_waiting()

    def check_integrity(self) -> None:
        """As it is."""
        self.inner.check_integrity()

    def _push(self, build: StepBuilder) -> None:
        able = [*build.running, *build.stalled]
        how = self._noise.choice(HOWS)
        if able and build.preempt(self._noise.choice(able), how):
            self.num_preempted += 1


class Readers:
    """Readers that take so many tokens a second, and report what they took."""

    def __init__(self, paces: dict[str, float]) -> None:
        """:param paces: tokens a second, by request id"""
        self._paces = {name: pace for name, pace in paces.items() if pace > 0}
        self._told: dict[tuple[str, int], int] = {}

    def look(self, harness: "Harness") -> None:
        """After each turn: report what was taken since the last time."""
        now = harness.clock()
        for name, pace in self._paces.items():
            answer = harness.answers.of.get(name)
            if answer is None or answer.ended is not None or answer.first_token_at is None:
                continue
            able = int((now - answer.first_token_at) * pace)
            if able == 0:
                continue
            for index, tokens in answer.tokens.items():
                count = min(able, len(tokens))
                if count > self._told.get((name, index), 0):
                    self._told[name, index] = count
                    harness.write(name, count, index)
