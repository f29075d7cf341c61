"""Requests for the harness, and when they come and go."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from enginebay.flow import FinishReason, Request, SamplingParams, TokenPrompt

VOCAB_SIZE: Final = 97
EOS_ID: Final = 0


@dataclass(frozen=True)
class Arrival:
    """A request, and when it comes."""

    time: float
    request: Request


@dataclass(frozen=True)
class Leaving:
    """A cancellation, and when it comes."""

    time: float
    request_id: str
    reason: FinishReason = "cancelled"


@dataclass(frozen=True)
class Writing:
    """A reader's report that a choice's first tokens reached it."""

    time: float
    request_id: str
    num_tokens: int
    index: int = 0


Happening = Arrival | Leaving | Writing


def request_of(
    request_id: str,
    *,
    num_prompt: int,
    max_tokens: int,
    n: int = 1,
    tenant: str = "default",
    priority: int = 0,
    window: int = 0,
    ignore_eos: bool = True,
    deadline: float | None = None,
    prompt: Sequence[int] | None = None,
) -> Request:
    """A request with a prompt of its own, unless one is given; seeded by its id."""
    seed = sum(byte * 257**place for place, byte in enumerate(request_id.encode())) % 2**62
    tokens = prompt or [
        1 + (seed + place * place) % (VOCAB_SIZE - 1) for place in range(num_prompt)
    ]
    sampling = SamplingParams(max_tokens=max_tokens, n=n, seed=seed, ignore_eos=ignore_eos)
    return Request(
        id=request_id,
        prompt=TokenPrompt(token_ids=tuple(tokens)),
        sampling=sampling,
        tenant=tenant,
        priority=priority,
        window=window,
        deadline=deadline,
    )
