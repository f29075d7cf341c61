"""Whole steps of the executor: plans written by hand, so that no request must be served first.

A sequence may begin in the middle: the cache then holds whatever it holds, which takes as
long to read as keys and values that somebody computed.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from enginebay.batch import Batch
from enginebay.flow import SamplingParams, SequenceStart, Span, StepPlan
from enginebay.hookspecs.kernel import Attention

from .attention import token_bytes
from .loaded import Loaded
from .work import Timed, Work, attention_work


class Stopwatch:
    """A decoder that notes how long each forward pass takes."""

    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder
        self.seconds: list[float] = []

    def forward(self, batch: Batch, attention: Attention) -> torch.Tensor:
        """As the decoder's own."""
        began = time.perf_counter()
        logits: torch.Tensor = self.decoder.forward(batch, attention)
        self.seconds.append(time.perf_counter() - began)
        return logits


def first_plan(sequences: int, context: int, rows: int, block_size: int, more: int) -> StepPlan:
    """Start sequences of ``context`` tokens and compute the last ``rows`` of each.

    :param more: positions that later steps will add
    """
    blocks = -(-(context + more) // block_size)
    started = tuple(
        SequenceStart(
            sequence_id=-1 - number,
            request_id="roofline",
            index=0,
            token_ids=(0,) * context,
            num_prompt=context,
            sampling=SamplingParams(temperature=0.0),
            seed=0,
        )
        for number in range(sequences)
    )
    spans = tuple(
        Span(
            sequence_id=-1 - number,
            start=context - rows,
            num_tokens=rows,
            logits_from=context - 1,
            table=tuple(range(number * blocks, (number + 1) * blocks)),
        )
        for number in range(sequences)
    )
    return StepPlan(step=0, started=started, spans=spans)


def next_plan(sequences: int, position: int) -> StepPlan:
    """One further position of each sequence."""
    spans = tuple(
        Span(sequence_id=-1 - number, start=position, num_tokens=1, logits_from=position)
        for number in range(sequences)
    )
    return StepPlan(step=position, spans=spans)


def time_step(
    loaded: Loaded, sequences: int, context: int, rows: int, rounds: int
) -> tuple[Timed, ...]:
    """A step of sequences that end at ``context``: the executor's whole step, and the
    decoder's forward pass within it. Nothing when the KV pool can't hold them.

    :param rows: positions that each computes: 1 for a decode, all for a prompt
    """
    block_size = loaded.context.limits.block_size
    if sequences * -(-(context + rounds) // block_size) > loaded.executor.num_blocks:
        return ()
    first = first_plan(sequences, context, rows, block_size, rounds)
    if rows > 1:
        planned = [first] * (rounds + 1)
    else:
        planned = [first, *(next_plan(sequences, context + n) for n in range(rounds))]
    steps, forwards = _run(loaded, planned)
    work = step_work(loaded, sequences, context, rows)
    kind = "decode" if rows == 1 else "prefill"
    name = f"{kind}, {sequences} at context {context:,}"
    return (
        Timed(f"{name}: forward", "", sequences * rows, forwards, work),
        Timed(f"{name}: step", "", sequences * rows, steps, work),
    )


def step_work(loaded: Loaded, sequences: int, context: int, rows: int) -> Work:
    """Weights once, keys and values once, the products; logits count as activations."""
    spec = loaded.cache_spec
    each = token_bytes(loaded.context.table, spec)
    attention = attention_work(spec, each, sequences, rows, context)
    products = loaded.product_work(sequences * rows, sequences)
    memory = products.memory + spec.num_layers * sum(part.memory for part in attention)
    return replace(
        products,
        memory=memory,
        resident=memory,
        float_macs=products.float_macs + spec.num_layers * attention[1].float_macs,
    )


def _run(loaded: Loaded, planned: Sequence[StepPlan]) -> tuple[float, float]:
    """Seconds of the fastest (step, forward pass); the first of both is left out."""
    executor = loaded.executor
    runner = executor.runner
    watch = runner.decoder = Stopwatch(runner.decoder)
    steps = []
    try:
        for plan in planned:
            began = time.perf_counter()
            result = executor.collect(executor.execute(plan))
            steps.append(time.perf_counter() - began)
            _check(result)
    finally:
        runner.decoder = watch.decoder
        runner.rows.clear()
    return min(steps[1:]), min(watch.seconds[1:])


def _check(result: Any) -> None:
    """:raises RuntimeError: a sequence failed, so its time means nothing"""
    for output in result.outputs:
        if output.error is not None:
            raise RuntimeError(f"a step failed: {output.error}")
