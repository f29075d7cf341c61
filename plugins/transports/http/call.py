"""A parsed HTTP request: the engine requests behind it, and the answer it wants."""

import uuid
from dataclasses import dataclass

from enginebay.flow import Prompt, Request, SamplingParams
from enginebay.hookspecs.sink import Reply

from .fields import Common


@dataclass(frozen=True)
class Origin:
    """What is known of a request without its body."""

    tenant: str = "default"
    """From the caller's key."""
    arrival: float = 0.0
    """Monotonic seconds: when its body was there."""
    attempt: int = 0
    """How often the caller has tried before."""


@dataclass(frozen=True)
class Call:
    """What one HTTP request asks for."""

    model: str
    requests: tuple[Request, ...]
    """One a prompt."""
    reply: Reply
    stream: bool


def answer_id(prefix: str) -> str:
    """A new id, as the API spells it."""
    return prefix + uuid.uuid4().hex


def engine_requests(
    body: Common,
    id_: str,
    prompts: list[Prompt],
    sampling: SamplingParams,
    origin: Origin,
    window: int,
) -> tuple[Request, ...]:
    """One request a prompt, each with an id of its own.

    :param window: tokens a stream may be ahead of its reader
    """
    single = len(prompts) == 1
    return tuple(
        Request(
            id=id_ if single else f"{id_}-{i}",
            prompt=prompt,
            sampling=sampling,
            tenant=origin.tenant,
            priority=body.priority or 0,
            deadline=body.deadline,
            window=window if body.stream else 0,
            arrival=origin.arrival,
            attempt=origin.attempt,
        )
        for i, prompt in enumerate(prompts)
    )
