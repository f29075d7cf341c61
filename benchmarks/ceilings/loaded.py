"""A stack's model with its kernels, loaded as the engine loads it, without an engine."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from enginebay.assembler import Assembler
from enginebay.hookspecs.executor import ExecutorContext
from enginebay.hookspecs.kernel import KVSpec
from enginebay.kv import kv_spec
from enginebay.preparation import prepare
from enginebay.stack import Stack

from .recorder import Recorder
from .work import Work, linear_work


@dataclass(frozen=True)
class Loaded:
    """What is measured."""

    context: ExecutorContext
    recorder: Recorder
    executor: Any
    """The stack's executor, which runs in this thread (``local``)."""

    @property
    def cache_spec(self) -> KVSpec:
        """What the model's KV store holds."""
        limits = self.context.limits
        return kv_spec(
            self.context.spec,
            block_size=limits.block_size,
            max_model_len=limits.max_model_len,
            dtype=self.context.dtype,
        )

    def product_work(self, rows: int, logit_rows: int) -> Work:
        """Of one forward pass but for attention: every layer at ``rows``, the head at
        ``logit_rows``. Norms are left out (a thousandth), and of the table of embeddings a
        step reads single rows."""
        parts = [
            linear_work(packed, logit_rows if signature.op == "logits" else rows, 0)
            for packed, signature in self.recorder.linears
        ]
        memory = sum(part.memory for part in parts)
        spec = self.context.spec
        return Work(
            memory=memory,
            resident=memory,
            cached=4 * logit_rows * spec.vocab_size,
            float_macs=sum(part.float_macs for part in parts),
            int_macs=sum(part.int_macs for part in parts),
        )


def load(stack: Stack) -> Loaded:
    """Find, load and warm up a stack's model.

    :raises ValueError: the stack computes somewhere else than on a CPU
    """
    build = Assembler(stack.without("transports", "sinks"))
    context = prepare(build).context
    if context.device != "cpu":
        msg = f"engine.device is {context.device!r}; the limits are measured for 'cpu' alone"
        raise ValueError(msg)
    recorder = Recorder(context.family, context.dtype)
    executor = build.one("executor", replace(context, family=recorder))
    with torch.inference_mode():
        executor.warm_up()
    return Loaded(context, recorder, executor)
