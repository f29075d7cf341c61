"""What is measured: the points, and the prompts of each."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Point:
    """One load: ``concurrency`` requests at once, all of the same lengths."""

    name: str
    prompt: int
    """Tokens of each prompt."""
    tokens: int
    """Tokens generated for each."""
    concurrency: int = 1
    counts: Literal["prompt", "generated", "decode"] = "generated"
    """Tokens a second: of the prompts; of all that was generated, over the whole run; of
    what was generated after the first tokens came, over the time since."""


POINTS = (
    Point("prefill-512", 512, 1, counts="prompt"),
    Point("16+64@1", 16, 64),
    Point("16+64@4", 16, 64, 4),
    Point("16+64@16", 16, 64, 16),
    Point("128+64@16", 128, 64, 16),
    Point("2000+64@1", 2000, 65, counts="decode"),
)
QUICK = ("prefill-512", "16+64@4")
"""The points of a check that has a minute."""
LONGEST = max(point.prompt + point.tokens for point in POINTS)
MOST = max(point.concurrency for point in POINTS)


def prompts(point: Point, turn: int, ids: Sequence[int], seed: int) -> list[list[int]]:
    """The prompts of a point in one round: the same for every engine, never twice.

    :param ids: token ids to draw from
    """
    noise = random.Random(f"{seed}/{point.name}/{turn}")
    return [noise.choices(ids, k=point.prompt) for _ in range(point.concurrency)]


def rate(point: Point, seconds: float, first: tuple[int, float] | None) -> float:
    """Tokens a second, as the point counts them.

    :param seconds: of the whole run
    :param first: how many tokens came first, and how many seconds after the beginning
    :raises ValueError: the point counts from the first token, which was not seen
    """
    if point.counts == "prompt":
        return point.prompt * point.concurrency / seconds
    generated = point.tokens * point.concurrency
    if point.counts == "generated":
        return generated / seconds
    if first is None or first[0] >= generated:
        raise ValueError(f"{point.name}: the first token did not come before the last")
    return (generated - first[0]) / (seconds - first[1])
