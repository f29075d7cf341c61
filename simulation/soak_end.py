"""What must hold when everybody has left a world."""

from typing import Final

from enginebay.conformance.answers import Answer
from enginebay.conformance.check import require
from enginebay.conformance.harness import Harness
from enginebay.conformance.worlds import require_all_well

from .soak_world import World

MAX_OVERTAKES: Final = 64
"""Later equals that may begin before an earlier one."""
LATE: Final = 0.05
"""Seconds past its deadline that a request may end for each plan in flight: the deadline
is looked at between steps."""
WELL: Final = frozenset({"stop", "length"})


def require_rightly_ended(world: World, harness: Harness) -> None:
    """Right tokens, true reasons, and nothing held. :raises Broken: it is not so"""
    require_all_well(harness, "soak/end")
    used = harness.engine.blocks.swap.num_used
    require(used == 0, "soak/swap", f"{used} host slots are held by nobody")
    held = harness.intake.num_held
    require(held == 0, "soak/intake", f"{held} requests are held, none is under way")
    for name, answer in harness.answers.of.items():
        _check_scores(name, answer)
        _check_deadline(name, answer, LATE * (world.depth + 1))
    if world.equals:
        _check_overtakes(world, harness)


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
    elif WELL.intersection(answer.reasons):
        prompt = getattr(answer.request.prompt, "token_ids", ())
        scores = answer.prompt.logprobs if answer.prompt is not None else ()
        named = [score.token.token_id for score in scores if score is not None]
        told = f"{name}: scores of {named}, the prompt is {prompt}"
        right = len(scores) == len(prompt) and named == list(prompt[1:])
        require(right, "soak/scores", told)


def _check_deadline(name: str, answer: Answer, slack: float) -> None:
    """Nobody is served past its deadline."""
    request, ended = answer.request, answer.ended_at
    if request.deadline is None or request.arrival is None or ended is None:
        return
    late = ended - request.arrival - request.deadline
    require(late <= slack, "soak/deadline", f"{name} ended {late:.3f} s after its deadline")


def _check_overtakes(world: World, harness: Harness) -> None:
    """Of equals, no one is overtaken by more than the bound."""
    begun = [
        harness.answers.of[visit.id].first_token_at
        for visit in world.visits
        if visit.id in harness.answers.of
    ]
    for number, moment in enumerate(begun):
        count = sum(later < moment for later in begun[number + 1 :] if later and moment)
        told = f"request {number} was overtaken by {count} later equals"
        require(count <= MAX_OVERTAKES, "soak/no-starvation", told)
