"""Executors and engines on a device, for the stages."""

from dataclasses import dataclass
from typing import Any

import torch

from enginebay.assembler import Assembler
from enginebay.config import load_stack
from enginebay.flow import SamplingParams, SequenceStart, Span, StepPlan
from enginebay.preparation import prepare

BLOCK = 16
BLOCKS = 256


@dataclass(frozen=True)
class Place:
    """Where something is computed, and with which kernels."""

    device: str
    kernels: tuple[str, ...]
    dtype: str = "float32"

    def changes(self, model: str) -> dict[str, Any]:
        """Of a stack."""
        return {
            "engine.model": model,
            "engine.device": self.device,
            "engine.dtype": self.dtype,
            "engine.num_blocks": BLOCKS,
            "engine.block_size": BLOCK,
            "kernels": list(self.kernels),
            # a rehearsal's interpreter takes a second for what a GPU does in microseconds
            "engine.max_sequences": 4 if self.device == "cpu" else 64,
            "options.executor.local.warm_up_tokens": 8 if self.device == "cpu" else 512,
        }


CPU = Place("cpu", ("reference",))


def on_gpu(dry: bool, dtype: str = "float32") -> Place:
    """The GPU; in a rehearsal the interpreter on a CPU."""
    return Place("cpu" if dry else "cuda", ("triton", "reference"), dtype)


class Steps:
    """An executor that computes plans written by hand and keeps their logits."""

    def __init__(self, model: str, place: Place) -> None:
        build = Assembler(load_stack("cpu", place.changes(model)).without("transports", "sinks"))
        self.context = prepare(build).context
        self.executor = build.one("executor", self.context)
        self.executor.warm_up()
        self.logits: list[torch.Tensor] = []
        self.executor.runner.tap = lambda plan, logits: self.logits.append(logits.float().cpu())
        self.lengths: dict[int, int] = {}
        self._used = 0

    def run(self, prompts: dict[int, list[int]]) -> dict[int, int]:
        """One step: a position of every sequence that is there, and whole new prompts.

        :return: the token drawn for each sequence
        """
        spans = [
            Span(sequence_id=number, start=length, num_tokens=1, logits_from=length)
            for number, length in self.lengths.items()
        ]
        started = []
        for number, ids in prompts.items():
            started.append(_start(number, ids))
            spans.append(self._prompt(number, len(ids)))
        plan = StepPlan(step=len(self.logits), started=tuple(started), spans=tuple(spans))
        result = self.executor.collect(self.executor.execute(plan))
        for each in result.outputs:
            if each.error is not None:
                raise RuntimeError(each.error)
        self.lengths = {number: length + 1 for number, length in self.lengths.items()}
        self.lengths |= {number: len(ids) for number, ids in prompts.items()}
        return {each.sequence_id: each.token_ids[0] for each in result.outputs}

    def _prompt(self, number: int, length: int) -> Span:
        blocks = -(-(length + 64) // BLOCK)
        table = tuple(range(self._used, self._used + blocks))
        self._used += blocks
        return Span(
            sequence_id=number,
            start=0,
            num_tokens=length,
            logits_from=length - 1,
            table=table,
        )


def _start(number: int, ids: list[int]) -> SequenceStart:
    return SequenceStart(
        sequence_id=number,
        request_id=f"check-{number}",
        index=0,
        token_ids=tuple(ids),
        num_prompt=len(ids),
        sampling=SamplingParams(temperature=0.0),
        seed=0,
    )
