"""Play: a trace against a candidate, on imagined hardware and in virtual time."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import VOCAB_SIZE, Arrival
from enginebay.errors import EnginebayError, EngineStopped
from enginebay.flow import Request, SamplingParams, TokenPrompt

from .candidate import Candidate
from .cost import Cost
from .recorder import Recorder
from .trace import Call

MAX_TURNS: Final = 5_000_000


@dataclass(frozen=True)
class Played:
    """A run that is over."""

    candidate: Candidate
    cost: Cost
    calls: tuple[Call, ...]
    recorder: Recorder
    wall_seconds: float
    """Real seconds that it took."""
    turned_away: dict[str, str]
    """Request id -> why."""


def play(candidate: Candidate, calls: Sequence[Call], cost: Cost) -> Played:
    """Run a trace to its end.

    :raises EngineStopped: a plugin failed while it ran
    """
    recorder = Recorder()
    requests = [request_of(number, call) for number, call in enumerate(calls)]
    harness = Harness(
        candidate.scheduler,
        candidate.limits,
        make_allocator=candidate.allocator,
        cost=cost,
        verify=False,
        audited=False,
        door=candidate.admission("door"),
        budget=candidate.admission("budget"),
        observers=[("recorder", recorder)],
        timeline=recorder,
        swap_seconds=2 * cost.block,
        lengths={r.id: c.output_tokens for r, c in zip(requests, calls, strict=True)},
    )
    recorder.harness = harness
    turned_away: dict[str, str] = {}

    def refused(request: Request, error: EnginebayError) -> None:
        turned_away[request.id] = str(error)

    arrivals = [Arrival(c.time, r) for r, c in zip(requests, calls, strict=True)]
    began = time.perf_counter()
    harness.play(arrivals, refused=refused, max_turns=MAX_TURNS)
    seconds = time.perf_counter() - began
    if harness.engine.state == "failed":
        raise EngineStopped(f"{candidate.name}: the engine failed: {harness.engine.failure}")
    if harness.engine.watch.switched_off:
        raise EngineStopped(f"{candidate.name}: the recorder failed; see the log")
    return Played(candidate, cost, tuple(calls), recorder, seconds, turned_away)


def request_of(number: int, call: Call) -> Request:
    """The request of a trace's call. Prompts are drawn, so they share what ``prefix`` says
    and no more."""
    shared = random.Random(f"{call.tenant}/{call.prefix}") if call.prefix_tokens else None
    prefix = _tokens(shared, call.prefix_tokens) if shared else []
    own = _tokens(random.Random(number), call.prompt_tokens - len(prefix))
    sampling = SamplingParams(
        max_tokens=call.max_tokens or call.output_tokens, n=call.n, seed=number
    )
    return Request(
        id=f"{number:05}",
        prompt=TokenPrompt(token_ids=(*prefix, *own)),
        sampling=sampling,
        tenant=call.tenant,
        priority=call.priority,
        deadline=call.deadline,
        arrival=call.time,  # the clock stands still in a step: it came before the step's end
    )


def _tokens(noise: random.Random, count: int) -> list[int]:
    return noise.choices(range(1, VOCAB_SIZE), k=count)
