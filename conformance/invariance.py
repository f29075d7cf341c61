"""Promise P1: tokens do not depend on neighbours, order, chunking, block size, cancels,
cache hits or preemption.

A request is run alone and then in other surroundings. In a row-invariant stack its
logits must have the same bits everywhere. In others they must agree within a tolerance,
and tokens may differ only after a position where the two best perturbed logits (logits
over temperature plus noise) are closer than that tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from enginebay.flow import SamplingParams, TokenPrompt
from enginebay.hookspecs.allocator import PrefixCaching
from enginebay.llm import LLM

from .noise import Place, gumbel
from .pushing import Pushing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from enginebay.flow import StepPlan
    from enginebay.hookspecs.scheduler import How
    from enginebay.stack import Stack

GREEDY = SamplingParams(max_tokens=16, ignore_eos=True, temperature=0.0, seed=0)
SEEDED = SamplingParams(max_tokens=16, ignore_eos=True, temperature=0.9, seed=1234)


@dataclass
class Run:
    """What one request got in one surrounding."""

    name: str
    tokens: tuple[int, ...] = ()
    logits: dict[int, torch.Tensor] = field(default_factory=dict)
    """By the position whose logits they are; float32 [V]."""


class Tap:
    """Keeps the logits of one prompt's sequence while an engine steps."""

    def __init__(self, llm: LLM, prompt_ids: Sequence[int]) -> None:
        self.logits: dict[int, torch.Tensor] = {}
        self._prompt = tuple(prompt_ids)
        self._ids: set[int] = set()
        llm.assembly.executor.runner.tap = self._take  # type: ignore[attr-defined]

    def _take(self, plan: StepPlan, logits: torch.Tensor) -> None:
        for start in plan.started:
            if start.token_ids[: start.num_prompt] == self._prompt and start.index == 0:
                self._ids.add(start.sequence_id)
        place = 0
        for span in plan.spans:
            if span.logits_from < 0:
                continue
            count = span.start + span.num_tokens - span.logits_from
            if span.sequence_id in self._ids:
                for offset in range(count):
                    self.logits[span.logits_from + offset] = logits[place + offset].clone()
            place += count


def observe(
    llm: LLM,
    name: str,
    prompt_ids: Sequence[int],
    sampling: SamplingParams,
    neighbours: Iterable[Sequence[int]] = (),
    *,
    place: int | None = None,
    cancel: Sequence[int] | None = None,
    hot: bool = False,
    push: How | None = None,
) -> Run:
    """Run one prompt among neighbours.

    :param place: how many of them come before it; ``None``: half
    :param cancel: a neighbour that is cancelled midway
    :param hot: run it after itself, so that its prompt and answer are cached
    :param push: preempt it midway, in this way
    """
    if hot:
        llm.generate([prompt_ids], sampling)
    tap = Tap(llm, prompt_ids)
    pushing = Pushing(llm.assembly.engine, prompt_ids, push) if push else None
    if cancel is not None:
        doomed = llm.stream(TokenPrompt(token_ids=tuple(cancel)), sampling)
        for _ in range(3):
            next(doomed)
        doomed.close()
    prompts = [*neighbours]
    prompts.insert(len(prompts) // 2 if place is None else place, prompt_ids)
    outputs = llm.generate(prompts, sampling)
    mine = outputs[prompts.index(prompt_ids)]
    if pushing is not None:
        pushing.done(mine.usage.num_preemptions)
    if hot:
        _check_hit(llm, name, len(prompt_ids), mine.usage.cached_tokens)
    return Run(name, mine.outputs[0].token_ids, tap.logits)


def _check_hit(llm: LLM, name: str, num_prompt: int, num_cached: int) -> None:
    """Whether the prompt's full blocks were found, if the stack keeps any."""
    engine = llm.assembly.engine
    size = engine.limits.block_size
    caches = isinstance(engine.allocator, PrefixCaching)
    expected = (num_prompt - 1) // size * size if caches else 0
    assert num_cached == expected, f"{name}: {num_cached} positions were cached, not {expected}"


def crowd(vocab_size: int) -> list[list[int]]:
    """31 other prompts of 5 to 140 tokens."""
    return [
        [(7 * number + 3 * place) % vocab_size for place in range(5 + 9 * (number % 16))]
        for number in range(31)
    ]


def surroundings(vocab_size: int) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(name, changed engine options, arguments of ``observe``) of every variation."""
    others = crowd(vocab_size)
    varied: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("31 neighbours", {}, {"neighbours": others}),
        ("31 neighbours turned round, all before", {}, {"neighbours": others[::-1], "place": 31}),
        ("first of 32 in steps of 48", {"max_step_tokens": 48}, {"neighbours": others, "place": 0}),
        ("after a cancelled neighbour", {}, {"cancel": others[9]}),
        ("after itself", {}, {"hot": True}),
        ("preempted by recompute", {}, {"push": "recompute"}),
        ("preempted by swap", {"swap_memory": "64MiB"}, {"push": "swap"}),
    ]
    chunks, sizes = (1, 7, 64, 512), (4, 16, 32)
    varied += [(f"steps of {count}", {"max_step_tokens": count}, {}) for count in chunks]
    return varied + [(f"blocks of {size}", {"block_size": size}, {}) for size in sizes]


def check_invariance(stack: Stack, prompt_ids: Sequence[int]) -> list[str]:
    """Hold a stack to P1. :return: what was compared, a line each

    :raises AssertionError: names the surrounding and the first position that differs
    """
    lines = []
    alone, exact, vocab_size = _alone(stack, prompt_ids)
    for name, changes, arguments in surroundings(vocab_size):
        engine = msgspec.structs.replace(stack.engine, **changes)
        with LLM(stack=msgspec.structs.replace(stack, engine=engine)) as llm:
            for sampling in (GREEDY, SEEDED):
                run = observe(llm, name, prompt_ids, sampling, **arguments)
                lines.append(compare(alone[sampling.seed], run, sampling, exact=exact))
    return lines


def check_threads(
    stack: Stack, prompt_ids: Sequence[int], counts: Sequence[int] = (1, 2)
) -> list[str]:
    """Hold a stack to P1 over numbers of threads, alone and among neighbours.

    The engines come one after another: a process has one setting for its threads.

    :return: what was compared, a line each
    :raises AssertionError: names the number of threads and the first position that differs
    """
    before = torch.get_num_threads()
    stacks = [
        msgspec.structs.replace(stack, engine=msgspec.structs.replace(stack.engine, threads=count))
        for count in counts
    ]
    alone, exact, vocab_size = _alone(stacks[0], prompt_ids)
    lines = []
    for count, each in zip(counts, stacks, strict=True):
        with LLM(stack=each) as llm:
            for sampling in (GREEDY, SEEDED):
                for told, others in (("31 neighbours", crowd(vocab_size)), ("after them", [])):
                    name = f"{count} threads, {told}"
                    run = observe(llm, name, prompt_ids, sampling, others)
                    lines.append(compare(alone[sampling.seed], run, sampling, exact=exact))
    torch.set_num_threads(before)
    return lines


def _alone(stack: Stack, prompt_ids: Sequence[int]) -> tuple[dict[int | None, Run], bool, int]:
    """A prompt alone in an engine of its own, so that nothing is cached yet.

    :return: the runs by seed, whether the stack is row-invariant, the vocabulary's size
    """
    alone = {}
    for sampling in (GREEDY, SEEDED):
        with LLM(stack=stack) as llm:
            exact = llm.assembly.table.row_invariant
            vocab_size = llm.assembly.spec.vocab_size
            alone[sampling.seed] = observe(llm, "alone", prompt_ids, sampling)
    return alone, exact, vocab_size


def compare(
    alone: Run, run: Run, sampling: SamplingParams, *, exact: bool, tolerance: float = 1e-3
) -> str:
    """Hold one run against the run alone.

    :param exact: demand equal bits; else agreement within ``tolerance``
    :raises AssertionError: names the surrounding and the position
    """
    worst = 0.0
    for number, (mine, theirs) in enumerate(zip(alone.tokens, run.tokens, strict=True)):
        position = min(alone.logits) + number
        left, right = alone.logits[position], run.logits[position]
        worst = max(worst, float((left - right).abs().max()))
        where = f"{run.name}, position {position}"
        assert not exact or torch.equal(left, right), f"{where}: logits differ by {worst:.2e}"
        assert worst <= tolerance, f"{where}: logits differ by {worst:.2e} > {tolerance:.0e}"
        if mine != theirs:
            gap = _margin(left, sampling, position + 1)
            assert gap <= tolerance, f"{where}: token {theirs} for {mine}, margin {gap:.2e}"
            return f"{run.name}: tokens part after a near tie at {position} ({gap:.1e})"
    kind = "seeded" if sampling.transforms["temperature"] else "greedy"
    return f"{run.name}, {kind}: {len(run.tokens)} tokens equal, logits within {worst:.1e}"


def _margin(logits: torch.Tensor, sampling: SamplingParams, position: int) -> float:
    """Distance of the two best perturbed logits."""
    temperature = sampling.transforms["temperature"]
    perturbed = logits.double()
    if temperature:
        noise = gumbel(range(len(logits)), Place(sampling.seed or 0, position))
        perturbed = perturbed / temperature + torch.as_tensor(noise, dtype=torch.float64)
    best = torch.topk(perturbed, 2).values
    return float(best[0] - best[1])
