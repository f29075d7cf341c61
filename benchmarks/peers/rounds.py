"""The run: every engine at every point, in turn, for several rounds."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .machine import busy_seconds
from .points import Point, prompts, rate
from .process import Failed

WARM_UP = 0
"""The round before the first: run and not counted, so that every shape was seen once."""


class Asked(Protocol):
    """What a round needs of a worker."""

    def run(self, prompts: list[list[int]], tokens: int, *, mark: bool) -> dict[str, Any]: ...
    def awake(self) -> Any: ...
    def cpu_seconds(self) -> float: ...
    def close(self) -> None: ...


@dataclass
class Measurement:
    """One engine at one point in one round."""

    engine: str
    point: str
    turn: int
    rate: float
    """Tokens a second, as the point counts them."""
    seconds: float
    first: tuple[int, float] | None
    others: float
    """Cores that were busy with something else meanwhile."""
    outputs: list[list[int]] = field(repr=False)


@dataclass
class Run:
    """The workers and what they are to do. Those that fail are left out from there on."""

    workers: dict[str, Asked]
    points: Sequence[Point]
    ids: Sequence[int]
    seed: int
    left_out: dict[str, str] = field(default_factory=dict)
    measured: list[Measurement] = field(default_factory=list)

    def turns(self, rounds: int, tell: Callable[[str], None]) -> Iterator[int]:
        """Run the warm-up and the rounds. :return: after each round, its number"""
        for turn in range(WARM_UP, rounds + 1):
            for place, point in enumerate(self.points):
                self._point(point, turn, place, tell)
            if turn != WARM_UP:
                yield turn

    def _point(self, point: Point, turn: int, place: int, tell: Callable[[str], None]) -> None:
        """Every engine once, a different one first each time."""
        names = list(self.workers)
        shift = (turn + place) % max(len(names), 1)
        for name in names[shift:] + names[:shift]:
            try:
                found = self._one(name, point, turn)
            except (Failed, ValueError) as error:
                self.left_out[name] = f"{point.name}: {error}"
                self.workers.pop(name).close()
                tell(f"{name} is left out: {error}")
                continue
            label = f"round {turn}" if turn != WARM_UP else "warm-up"
            tell(f"{label}  {point.name}  {name}  {found.rate:.1f} tokens/s")
            if turn != WARM_UP:
                self.measured.append(found)

    def _one(self, name: str, point: Point, turn: int) -> Measurement:
        asked = prompts(point, turn, self.ids, self.seed)
        with self.workers[name].awake() as worker:
            worker.run([asked[0][:8]], 2, mark=False)  # its threads are awake again
            others = busy_seconds() - worker.cpu_seconds()
            answer = worker.run(asked, point.tokens, mark=point.counts == "decode")
            others = busy_seconds() - worker.cpu_seconds() - others
        first = tuple(answer["first"]) if answer["first"] else None
        return Measurement(
            engine=name,
            point=point.name,
            turn=turn,
            rate=rate(point, answer["seconds"], first),
            seconds=answer["seconds"],
            first=first,
            others=max(others, 0.0) / answer["seconds"],
            outputs=answer["outputs"],
        )
