"""Worlds of the soak: everything that happens in one, as plain data that can be stored."""

import random
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from enginebay.conformance.traffic import VOCAB_SIZE
from enginebay.flow import Frozen, Request, SamplingParams, TokenPrompt
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import How

from .parts import Parts

MOST_BLOCKS: Final = 64
TENANTS: Final = ("a", "b", "c")
HOWS: Final[tuple[How, ...]] = ("recompute", "swap", "cheapest")
EQUALS_EVERY: Final = 12
"""One world in so many is a long queue of equal requests, to see whether one starves."""


class Visit(Frozen, frozen=True, kw_only=True):
    """One request, and how its caller behaves."""

    number: int
    """Its name, and the seed of its prompt and tokens."""
    time: float
    num_prompt: int
    max_tokens: int
    n: int = 1
    tenant: str = "a"
    priority: int = 0
    deadline: float | None = None
    stem: int = 0
    """Prompts of one stem begin alike."""
    stem_tokens: int = 0
    ignore_eos: bool = True
    scored: bool = False
    """Its prompt's tokens are to be scored, so it finds no prefix."""
    leaves: float | None = None
    """When its caller cancels it."""
    window: int = 0
    """Tokens that may be unwritten; 0: the reader is never looked at."""
    pace: float = 0.0
    """Tokens a second that the reader takes."""

    @property
    def id(self) -> str:
        """The request's."""
        return f"r{self.number}"

    def request(self) -> Request:
        """What the engine gets."""
        stem = _tokens(f"stem {self.stem}", min(self.stem_tokens, self.num_prompt))
        own = _tokens(f"own {self.number}", self.num_prompt - len(stem))
        sampling = SamplingParams(
            max_tokens=self.max_tokens,
            n=self.n,
            seed=self.number,
            ignore_eos=self.ignore_eos,
            logprobs=0 if self.number % 3 == 0 else None,
            prompt_logprobs=0 if self.scored else None,
        )
        return Request(
            id=self.id,
            prompt=TokenPrompt(token_ids=(*stem, *own)),
            sampling=sampling,
            tenant=self.tenant,
            priority=self.priority,
            deadline=self.deadline,
            window=self.window,
            arrival=self.time,
        )


class World(Frozen, frozen=True, kw_only=True):
    """An engine, its adversities and its visits."""

    seed: int
    limits: Limits
    scheduler: str
    allocator: str
    options: dict[str, dict[str, Any]] = {}
    """Of a slot's plugin, where they are not the defaults."""
    door: tuple[str, ...] = ()
    budget: tuple[str, ...] = ()
    depth: int = 1
    drafts: bool = False
    refusing: float = 0.0
    """How often the allocator refuses although it could grant."""
    jostling: float = 0.0
    """How often in a step a running sequence is preempted for nothing."""
    equals: bool = False
    """All visits are alike but for tenant and arrival, and no one may starve."""
    visits: tuple[Visit, ...] = ()


def draw(seed: int, parts: Parts) -> World:
    """A random world; the same for the same seed and installed plugins."""
    noise = random.Random(seed)
    scheduler, allocator = noise.choice(parts.schedulers), noise.choice(parts.allocators)
    if seed % EQUALS_EVERY == EQUALS_EVERY - 1:
        limits = _limits(64, 4, MOST_BLOCKS, 4, 32)
        visits = tuple(_equals(noise, 150))
        return World(
            seed=seed,
            limits=limits,
            scheduler=scheduler,
            allocator=allocator,
            equals=True,
            visits=visits,
        )
    limits = random_limits(noise)
    stormy = noise.random() < 0.5
    return World(
        seed=seed,
        limits=limits,
        scheduler=scheduler,
        allocator=allocator,
        options={
            "scheduler": parts.random_options("scheduler", scheduler, noise),
            "allocator": parts.random_options("allocator", allocator, noise),
        },
        door=tuple(name for name in parts.door if noise.random() < 0.2),
        budget=tuple(name for name in parts.budget if noise.random() < 0.2),
        depth=noise.choice((1, 1, 2, 3)),
        drafts=noise.random() < 0.2,
        refusing=noise.choice((0.02, 0.1, 0.3)) if stormy else 0.0,
        jostling=noise.choice((0.0, 0.05, 0.2)) if stormy else 0.0,
        visits=tuple(_visits(noise, limits, noise.choice((6, 15, 40)))),
    )


def random_limits(noise: random.Random) -> Limits:
    """Bounds of a small engine: memory is short more often than not."""
    limits = _limits(
        noise.choice((4, 16, 64)),
        noise.choice((1, 3, 8)),
        noise.choice((8, 16, 24, 40, MOST_BLOCKS)),
        noise.choice((1, 2, 4, 8)),
        noise.choice((24, 48, 96)),
    )
    return msgspec.structs.replace(limits, num_swap_blocks=noise.choice((0, 0, 6, 40)))


def _limits(tokens: int, seats: int, blocks: int, block_size: int, longest: int) -> Limits:
    return Limits(
        max_model_len=longest,
        max_step_tokens=tokens,
        max_sequences=seats,
        block_size=block_size,
        num_blocks=blocks,
        vocab_size=VOCAB_SIZE,
    )


def _visits(noise: random.Random, limits: Limits, count: int) -> list[Visit]:
    """Bursts and pauses, short and long ones; some leave, some read slowly."""
    longest = min(limits.max_model_len, limits.num_blocks * limits.block_size)
    time, visits = 0.0, []
    stem_tokens = noise.choice((0, 0, longest // 4, longest // 2))
    for number in range(count):
        time += noise.expovariate(1 / noise.choice((0.0005, 0.02, 0.1)))
        prompt = noise.randint(1, noise.choice((4, longest // 2, longest - 1)))
        room = max(longest - prompt, 1)
        window, least = noise.choice((0, 0, 0, 1, 3, 8)), noise.choice((0, 1, 1, 1))
        visits.append(
            Visit(
                number=number,
                time=round(time, 6),
                num_prompt=prompt,
                max_tokens=noise.randint(least, min(room, noise.choice((2, 12, room)))),
                n=noise.choice((1, 1, 1, 3)),
                tenant=noise.choice(TENANTS),
                priority=noise.choice((0, 0, 1)),
                deadline=noise.choice((None, None, None, 0.02, 0.5)),
                stem=noise.randrange(2),
                stem_tokens=min(stem_tokens, prompt),
                ignore_eos=noise.random() < 0.5,
                scored=noise.random() < 0.1,
                leaves=round(time + noise.expovariate(20), 6) if noise.random() < 0.2 else None,
                window=window,
                pace=noise.choice((0.0, 20.0, 200.0, 2000.0)) if window else 0.0,
            )
        )
    return visits


def _equals(noise: random.Random, count: int) -> list[Visit]:
    """Twice as many as can be served, from two crowds and one who is alone."""
    return [
        Visit(
            number=number,
            time=number * 0.003,
            num_prompt=8,
            max_tokens=4,
            tenant="lonely" if number in (0, 20, 21) else noise.choice(("many", "more")),
        )
        for number in range(count)
    ]


def _tokens(seed: str, count: int) -> Sequence[int]:
    return random.Random(seed).choices(range(1, VOCAB_SIZE), k=count)
