"""One world, run to its end with every rule held up to it at every step."""

import random
from collections import Counter
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, field
from typing import Final, cast

from enginebay.conformance.check import Broken
from enginebay.conformance.harness import Harness
from enginebay.conformance.hash_model import continuation
from enginebay.conformance.traffic import VOCAB_SIZE, Arrival, Happening, Leaving
from enginebay.errors import EnginebayError, IntegrityError
from enginebay.flow import Request
from enginebay.hookspecs.allocator import Allocator
from enginebay.hookspecs.drafter import DraftView
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import Scheduler
from enginebay.sequence import Sequence

from .adversity import Jostling, Readers, refusing
from .parts import Parts
from .soak_end import require_rightly_ended
from .soak_watch import StepWatch
from .soak_world import World

STALL_SECONDS: Final = 0.3
TURNS_A_TOKEN: Final = 60
"""Turns that a world may take for each token that it could compute, at most."""


@dataclass
class Tally:
    """What happened, in numbers: a soak that meets no trouble proves nothing."""

    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)


def run_world(world: World, parts: Parts) -> Tally:
    """Run a world.

    :raises Broken: a rule does not hold; ``clause`` names it
    """
    trial = Trial(world, parts)
    try:
        trial.play()
    except (Broken, IntegrityError):
        raise
    except AssertionError as error:
        raise Broken("soak/assertion", str(error)) from error
    return trial.tally()


class Trial:
    """A world's engine and the watch over it."""

    def __init__(self, world: World, parts: Parts) -> None:
        self.world = world
        self._parts = parts
        self._noise = random.Random(f"adversity {world.seed}")
        self._turned_away: Counter[str] = Counter()
        self._readers = Readers({v.id: v.pace for v in world.visits if v.window})
        limits = world.limits
        self.harness = Harness(
            self._scheduler,
            limits,
            make_allocator=self._allocator,
            depth=world.depth,
            stall_seconds=STALL_SECONDS,
            door=[(name, parts.admission("door", name, limits)) for name in world.door],
            budget=[(name, parts.admission("budget", name, limits)) for name in world.budget],
            drafter=Guesses() if world.drafts else None,
        )
        self._watch = StepWatch(world, self.harness)

    def play(self) -> None:
        """Everything happens; then all must be well."""
        happenings: list[Happening] = []
        tokens = 1000
        for visit in self.world.visits:
            happenings.append(Arrival(visit.time, visit.request()))
            if visit.leaves is not None:
                happenings.append(Leaving(visit.leaves, visit.id))
            tokens += visit.n * (visit.num_prompt + visit.max_tokens)
        self.harness.play(
            happenings,
            each_turn=self._look,
            refused=self._refused,
            max_turns=TURNS_A_TOKEN * tokens,
        )
        require_rightly_ended(self.world, self.harness)

    def tally(self) -> Tally:
        """What happened."""
        counts = Counter(self._turned_away)
        for answer in self.harness.answers.of.values():
            counts.update(f"ended: {reason}" for reason in answer.reasons)
            if answer.ended is not None:
                counts["preempted"] += answer.ended.usage.num_preemptions
                counts["cached tokens"] += answer.ended.usage.cached_tokens
        allocator, scheduler = self.harness.allocator, self.harness.scheduler
        counts["reservations refused for nothing"] = getattr(allocator, "num_refused", 0)
        counts["preempted for nothing"] = getattr(scheduler, "num_preempted", 0)
        return Tally(self.harness.executor.num_plans, counts)

    def _scheduler(self, limits: Limits) -> Scheduler:
        options = self.world.options.get("scheduler", {})
        made = self._parts.scheduler(self.world.scheduler, limits, options)
        return Jostling(made, self.world.jostling, self._noise) if self.world.jostling else made

    def _allocator(self, num_blocks: int, block_size: int) -> Allocator:
        options = self.world.options.get("allocator", {})
        made = self._parts.allocator(self.world.allocator, self.world.limits, options)
        return refusing(made, self.world.refusing, self._noise)

    def _refused(self, request: Request, error: EnginebayError) -> None:
        self._turned_away[f"refused: {type(error).__name__}"] += 1

    def _look(self) -> None:
        """After each turn."""
        self._readers.look(self.harness)
        self._watch.look()


class Guesses:
    """A drafter that is right now and then."""

    def propose(self, sequences: Sequence_[DraftView], k: int) -> list[tuple[int, ...]]:
        """Up to ``k`` tokens each: some right ones, then wrong ones."""
        return [self._guess(cast("Sequence", sequence), k) for sequence in sequences]

    def _guess(self, sequence: Sequence, k: int) -> tuple[int, ...]:
        prompt = sequence.token_ids[: sequence.num_prompt]
        done = sequence.num_tokens - sequence.num_prompt
        right = continuation(
            prompt,
            done + k,
            seed=sequence.seed,
            index=sequence.index,
            vocab_size=VOCAB_SIZE,
        )
        count = sequence.num_tokens % (k + 1)
        return tuple(right[done : done + count] + [5] * (k - count))
