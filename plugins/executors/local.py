"""The local executor: one model on one device of this process."""

import time
from dataclasses import dataclass
from typing import Final

import msgspec

from enginebay import hookimpl
from enginebay.errors import CapacityError
from enginebay.flow import BlockOp, SamplingParams, SequenceStart, Span, StepPlan, StepResult
from enginebay.hookspecs.executor import Executor, ExecutorContext, Handle
from enginebay.hookspecs.kernel import HostSlots
from enginebay.runner import Runner
from enginebay.weights import attention_signature, kv_spec, load_decoder

CONTRACT = (1, 0)
_MEASURED: Final = 8
"""Blocks saved and loaded to measure what swapping costs."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How it warms up."""

    warm_up_tokens: int = 64
    """Prompt tokens of the warm-up pass; as many as the pool holds at most."""


@dataclass(frozen=True)
class Done:
    """A plan whose result is there already."""

    step: int


class Local:
    """Computes each plan at once, in the caller's thread."""

    depth = 1

    def __init__(self, options: Options, context: ExecutorContext) -> None:
        self._options = options
        self._context = context
        self._results: dict[int, StepResult] = {}
        self.decoder, self._weights = load_decoder(
            spec=context.spec,
            family=context.family,
            checkpoint=context.checkpoint,
            quantizer=context.quantizer,
            table=context.table,
            dtype=context.dtype,
            device=context.device,
        )
        kv = kv_spec(
            context.spec,
            block_size=context.limits.block_size,
            max_model_len=context.limits.max_model_len,
            dtype=context.dtype,
        )
        self.attention = context.table.resolve(attention_signature(kv))(kv)
        self.num_blocks = self._pool()
        try:
            self.attention.allocate(self.num_blocks)
        except (MemoryError, RuntimeError) as error:
            msg = (
                f"load: {self.num_blocks} KV blocks of {self.attention.bytes_per_block} bytes "
                "can't be allocated; lower engine.num_blocks or engine.kv_memory"
            )
            raise CapacityError(msg) from error
        self.num_swap_blocks = context.swap_bytes // self.attention.bytes_per_block
        self.swap_seconds: float = self._reserve_swap()
        self.runner = Runner(
            decoder=self.decoder,
            attention=self.attention,
            chain=context.chain,
            limits=context.limits,
            eos_token_ids=context.spec.eos_token_ids,
            device=context.device,
        )

    def warm_up(self) -> None:
        """Run a prompt and two decode steps through every op, then forget them."""
        block_size = self._context.limits.block_size
        count = max(1, min(self._options.warm_up_tokens, self.num_blocks * block_size - 2))
        blocks = tuple(range(-(-(count + 2) // block_size)))
        start = SequenceStart(
            sequence_id=-1,
            request_id="warm-up",
            index=0,
            token_ids=(0,) * count,
            num_prompt=count,
            sampling=SamplingParams(seed=0),
            seed=0,
        )
        prompt = Span(
            sequence_id=-1, start=0, num_tokens=count, logits_from=count - 1, table=blocks
        )
        self.runner.run(StepPlan(step=-1, started=(start,), spans=(prompt,)))
        for position in (count, count + 1):
            span = Span(sequence_id=-1, start=position, num_tokens=1, logits_from=position)
            self.runner.run(StepPlan(step=-1, spans=(span,)))
        self.runner.rows.clear()

    def execute(self, plan: StepPlan) -> Done:
        """Compute the plan now: a CPU has no queue of its own."""
        self._results[plan.step] = self.runner.run(plan)
        return Done(plan.step)

    def collect(self, handle: Handle) -> StepResult:
        """The result is there already."""
        return self._results.pop(handle.step)

    def memory(self) -> dict[str, int]:
        """Bytes of every storage it holds, by ledger line; shared storages count once."""
        seen: dict[int, int] = {}
        for tensor in self._weights.values():
            storage = tensor.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
        kv = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in self.attention.store.tensors()
        }
        return {"weights": sum(seen.values()), "kv": sum(kv.values())}

    def close(self) -> None:
        """Drop the model."""
        self.runner.rows.clear()

    def _reserve_swap(self) -> float:
        """Make the host slots. :return: seconds to save one block and load it again"""
        store = self.attention.store
        if not self.num_swap_blocks:
            return 0.0
        if isinstance(store, HostSlots):
            try:
                store.reserve_host(self.num_swap_blocks)
            except (MemoryError, RuntimeError) as error:
                msg = (
                    f"load: {self.num_swap_blocks} host slots for swapped KV blocks can't be "
                    "allocated; lower engine.swap_memory"
                )
                raise CapacityError(msg) from error
        began = time.perf_counter()
        for slot in range(min(_MEASURED, self.num_swap_blocks)):
            store.save((BlockOp(kind="save", source=0, target=slot),))
            store.load((BlockOp(kind="load", source=slot, target=0),))
        measured: int = min(_MEASURED, self.num_swap_blocks)
        return (time.perf_counter() - began) / measured

    def _pool(self) -> int:
        limits, context = self._context.limits, self._context
        if limits.num_blocks:
            return limits.num_blocks
        num_blocks: int = context.kv_bytes // self.attention.bytes_per_block
        if num_blocks < 1:
            msg = (
                f"load: engine.kv_memory holds {context.kv_bytes} bytes, one KV block of "
                f"{limits.block_size} tokens takes {self.attention.bytes_per_block}; "
                "raise kv_memory"
            )
            raise CapacityError(msg)
        longest = -(-limits.max_model_len // limits.block_size) * limits.max_sequences
        return min(num_blocks, longest)


@hookimpl
def enginebay_executor(options: Options, context: ExecutorContext) -> Executor:
    """Load the model and build the executor."""
    return Local(options, context)
