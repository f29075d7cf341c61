"""One world, run to its end with every rule held up to it at every step."""

import random
from collections import Counter
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, field
from typing import Final, cast

from enginebay.conformance.answers import Answer
from enginebay.conformance.check import Broken, require
from enginebay.conformance.harness import Harness
from enginebay.conformance.hash_model import continuation
from enginebay.conformance.traffic import VOCAB_SIZE, Arrival, Happening, Leaving
from enginebay.conformance.worlds import require_all_well
from enginebay.errors import EnginebayError, IntegrityError
from enginebay.flow import Request
from enginebay.hookspecs.allocator import Allocator
from enginebay.hookspecs.drafter import DraftView
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import Scheduler
from enginebay.sequence import Sequence, State

from .adversity import Jostling, Readers, refusing
from .parts import Parts
from .soak_world import World

PATIENCE: Final = 0.6
"""Seconds that nothing may be planned although something could be computed: less than the
core's own patience, so that no policy lives on being rescued."""
MAX_OVERTAKES: Final = 64
"""Later equals that may begin before an earlier one."""
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
        self._idle_since: float | None = None
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
        require_all_well(self.harness, "soak/end")
        for name, answer in self.harness.answers.of.items():
            _check_scores(name, answer)
        used = self.harness.engine.blocks.swap.num_used
        require(used == 0, "soak/swap", f"{used} host slots are held by nobody")
        held = self.harness.intake.num_held
        require(held == 0, "soak/intake", f"{held} requests are held, none is under way")
        if self.world.equals:
            self._check_overtakes()

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
        harness = self.harness
        engine = harness.engine
        harness.allocator.check_integrity()
        harness.scheduler.check_integrity()
        engine.blocks.swap.check_integrity()
        self._check_blocks()
        self._check_queue()
        self._check_work()

    def _check_blocks(self) -> None:
        """What seats hold is held; when nobody sits, nothing is."""
        harness, size = self.harness, self.world.limits.block_size
        used = self.world.limits.num_blocks - harness.allocator.num_free
        held: set[int] = set()
        for sequence in harness.roster.seats.values():
            held.update(sequence.table[: -(-sequence.num_computed // size)])
        told = f"seats hold {len(held)} blocks and {used} are not free"
        require(len(held) <= used, "soak/blocks", told)
        if not harness.roster.seats:
            require(used == 0, "soak/blocks", f"{used} blocks are held and nobody sits")

    def _check_queue(self) -> None:
        """Who waits in the engine waits in the policy."""
        waiting = sum(_queued(s, self.harness) for s in self.harness.roster.sequences.values())
        counted = self.harness.scheduler.num_waiting()
        told = f"the policy counts {counted} waiting, the engine gave it {waiting}"
        require(counted == waiting, "soak/queue", told)

    def _check_work(self) -> None:
        """Nothing is held back for longer than the patience while it could be computed."""
        now = self.harness.clock()
        if self.harness.planned or not self._possible():
            self._idle_since = None
            return
        self._idle_since = now if self._idle_since is None else self._idle_since
        idle = now - self._idle_since
        told = f"nothing was planned for {idle:.2f} s although {self._possible()}"
        require(idle <= PATIENCE, "soak/work-conserving", told)

    def _possible(self) -> str:
        """What could be computed now, in words; empty: nothing."""
        roster, free = self.harness.roster, self.harness.allocator.num_free
        limits = self.world.limits
        for sequence in roster.sequences.values():
            if sequence.state is State.RUNNING and free and not sequence.stalled:
                return f"sequence {sequence.id} runs and {free} blocks are free"
            needed = -(-sequence.num_tokens // limits.block_size)
            roomy = needed <= free and len(roster.seats) < limits.max_sequences
            if roomy and _queued(sequence, self.harness) and not sequence.stalled:
                return f"sequence {sequence.id} waits for {needed} of {free} free blocks"
        return ""

    def _check_overtakes(self) -> None:
        """Of equals, no one is overtaken by more than the bound."""
        begun = [
            self.harness.answers.of[visit.id].first_token_at
            for visit in self.world.visits
            if visit.id in self.harness.answers.of
        ]
        for number, moment in enumerate(begun):
            count = sum(later < moment for later in begun[number + 1 :] if later and moment)
            told = f"request {number} was overtaken by {count} later equals"
            require(count <= MAX_OVERTAKES, "soak/no-starvation", told)


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


def _check_scores(name: str, answer: Answer) -> None:
    """Every generated token has its score, and the whole prompt where that was asked for."""
    sampling = answer.request.sampling
    if sampling.logprobs is not None:
        for index, tokens in answer.tokens.items():
            count = len(answer.logprobs.get(index, ()))
            told = f"{name}, choice {index}: {count} scores for {len(tokens)} tokens"
            require(count == len(tokens), "soak/scores", told)
    if sampling.prompt_logprobs is None:
        require(answer.prompt is None, "soak/scores", f"{name} was scored unasked")
    elif "length" in answer.reasons or "stop" in answer.reasons:
        prompt = getattr(answer.request.prompt, "token_ids", ())
        scores = answer.prompt.logprobs if answer.prompt is not None else ()
        named = [score.token.token_id for score in scores if score is not None]
        told = f"{name}: scores of {named}, the prompt is {prompt}"
        right = len(scores) == len(prompt) and named == list(prompt[1:])
        require(right, "soak/scores", told)


def _queued(sequence: Sequence, harness: Harness) -> bool:
    """Whether it waits in the policy's queue."""
    waits = sequence.state is State.WAITING and sequence not in sequence.group.deferred
    return waits and sequence.id not in harness.roster.parked
