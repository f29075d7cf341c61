"""Random worlds for schedulers: limits, pools and traffic from a seed."""

import random
from dataclasses import dataclass
from typing import Final

from enginebay.hookspecs.model import Limits

from .check import require
from .harness import Harness
from .hash_model import continuation
from .traffic import EOS_ID, VOCAB_SIZE, Arrival, Happening, Leaving, request_of

TENANTS: Final = ("a", "b", "c")


@dataclass(frozen=True)
class World:
    """What a scheduler lives in, and what happens to it."""

    limits: Limits
    happenings: tuple[Happening, ...]


def limits_of(
    *,
    max_step_tokens: int = 64,
    max_sequences: int = 8,
    num_blocks: int = 64,
    block_size: int = 4,
    max_model_len: int = 200,
    num_swap_blocks: int = 0,
) -> Limits:
    """Limits of a small engine."""
    return Limits(
        max_model_len=max_model_len,
        max_step_tokens=max_step_tokens,
        max_sequences=max_sequences,
        block_size=block_size,
        num_blocks=num_blocks,
        vocab_size=VOCAB_SIZE,
        num_swap_blocks=num_swap_blocks,
    )


def random_world(seed: int, num_requests: int = 30) -> World:
    """Bursts and pauses, short and long requests, several choices, a share that leaves."""
    noise = random.Random(seed)
    limits = limits_of(
        max_step_tokens=noise.choice((5, 16, 64)),
        max_sequences=noise.choice((1, 3, 8)),
        num_blocks=noise.choice((16, 24, 60)),
        block_size=noise.choice((2, 4, 8)),
        max_model_len=32 if seed % 3 == 0 else 64,
    )
    longest = min(limits.max_model_len, limits.num_blocks * limits.block_size)
    time = 0.0
    happenings: list[Happening] = []
    for number in range(num_requests):
        time += noise.expovariate(1 / noise.choice((0.0005, 0.02, 0.2)))
        num_prompt = noise.randint(1, noise.choice((4, longest // 2, longest - 1)))
        room = max(longest - num_prompt, 1)
        request = request_of(
            f"{seed}-{number}",
            num_prompt=num_prompt,
            max_tokens=noise.randint(1, min(room, noise.choice((2, 12, room)))),
            n=noise.choice((1, 1, 1, 3)),
            tenant=noise.choice(TENANTS),
            priority=noise.choice((0, 0, 1)),
            ignore_eos=noise.random() < 0.5,
        )
        happenings.append(Arrival(time, request))
        if noise.random() < 0.25:
            happenings.append(Leaving(time + noise.expovariate(1 / 0.05), request.id))
    return World(limits, tuple(happenings))


def require_all_well(harness: Harness, clause: str) -> None:
    """Every request ended rightly, and everything that was held came back."""
    engine = harness.engine
    require(engine.state == "ready", clause, f"the engine failed: {engine.failure}")
    open_ones = [name for name, answer in harness.answers.of.items() if answer.ended is None]
    require(not open_ones, clause, f"{open_ones[:5]} never ended")
    for name in harness.answers.of:
        require_right_answer(harness, name, clause)
    used = harness.limits.num_blocks - harness.allocator.num_free
    require(used == 0, clause, f"{used} blocks are still held")
    harness.allocator.check_integrity()
    left = (harness.scheduler.num_waiting(), len(harness.roster.seats))
    require(left == (0, 0), clause, f"{left[0]} sequences wait and {left[1]} run, of none")


def require_right_answer(harness: Harness, name: str, clause: str) -> None:
    """Each choice has the tokens that the model says, and ended for a true reason."""
    answer = harness.answers.of[name]
    request, prompt = answer.request, getattr(answer.request.prompt, "token_ids", ())
    sampling = request.sampling
    for index, end in answer.finished.items():
        tokens = answer.tokens.get(index, [])
        expected = continuation(
            prompt, len(tokens), seed=sampling.seed or 0, index=index, vocab_size=VOCAB_SIZE
        )
        require(tokens == expected, clause, f"{name}, choice {index}: other tokens were drawn")
        full = len(tokens) == sampling.max_tokens
        stopped = not sampling.ignore_eos and tokens[-1:] == [EOS_ID]
        size = -(-(len(prompt) + len(tokens)) // harness.limits.block_size)
        true = {
            "length": full,
            "stop": stopped,
            "cancelled": not full or sampling.max_tokens == 0,  # its prompt was not scored yet
            "slow_reader": request.window > 0,
            "deadline": request.deadline is not None,
            "capacity": size > harness.limits.num_blocks,
        }.get(end.reason, False)
        told = f"{name}, choice {index}: {end.reason!r} after {len(tokens)} tokens"
        require(true, clause, told)
