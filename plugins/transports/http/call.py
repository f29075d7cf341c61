"""A parsed HTTP request: the engine requests behind it, and the answer it wants."""

import time
import uuid
from dataclasses import dataclass

from enginebay.flow import Prompt, Request, SamplingParams
from enginebay.hookspecs.sink import Reply

from .fields import Common


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
    body: Common, id_: str, prompts: list[Prompt], sampling: SamplingParams, window: int
) -> tuple[Request, ...]:
    """One request a prompt, each with an id of its own.

    :param window: tokens a stream may be ahead of its reader
    """
    now = time.monotonic()
    single = len(prompts) == 1
    return tuple(
        Request(
            id=id_ if single else f"{id_}-{i}",
            prompt=prompt,
            sampling=sampling,
            priority=body.priority or 0,
            deadline=body.deadline,
            window=window if body.stream else 0,
            arrival=now,
        )
        for i, prompt in enumerate(prompts)
    )
