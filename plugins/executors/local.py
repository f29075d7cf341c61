"""The local executor: one model on one device of this process."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
import torch

from enginebay import hookimpl
from enginebay.flow import BlockOp, StepPlan, StepResult
from enginebay.hookspecs.executor import Executor, ExecutorContext, Handle, Holding
from enginebay.hookspecs.kernel import Buffered, HostSlots
from enginebay.kv import attention_signature, kv_spec
from enginebay.ledger.peak import measured_peak
from enginebay.ledger.planning import plan_stack, pool_blocks
from enginebay.ledger.process import give_back
from enginebay.ledger.room import check_room
from enginebay.ledger.shortage import on_line
from enginebay.ledger.storages import bytes_by_line, storage_key
from enginebay.runner import Runner
from enginebay.weights import open_builder

from .huge_pages import advise
from .warm_up import decode_plan, prompt_plan

CONTRACT = (1, 0)
_MEASURED: Final = 8
"""Blocks saved and loaded to measure what swapping costs."""
_PAGE: Final = 4096
_KV_FIX: Final = "lower engine.num_blocks or engine.kv_memory"
_STEP_FIX: Final = "lower engine.max_step_tokens or engine.kv_memory"


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How it warms up."""

    warm_up_tokens: int = 512
    """Prompt tokens of the warm-up step, whose memory peak goes into the ledger; as many
    as a step takes or the pool holds at most."""
    huge_pages: bool = True
    """Ask the system for huge pages under weights and KV pool; Linux only, never an error."""


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
        self.before_load = context.before_load if context.device == "cpu" else 0
        self.step_peak = (0, 0)
        self.plan = plan_stack(context)
        check_room(self.plan, context.device)
        spec, limits = context.spec, context.limits
        with on_line("load", "weights", "take a smaller model or dtype, or free memory"):
            builder = open_builder(
                spec=spec,
                family=context.family,
                checkpoint=context.checkpoint,
                quantizer=context.quantizer,
                table=context.table,
                dtype=context.dtype,
                device=context.device,
            )
            self.decoder = context.family.build(spec, builder)
        self._weights = tuple(builder.holdings.values())
        self._huge_pages(builder.tensors.values(), collapse=True)
        self._programs = builder.programs
        kv = kv_spec(
            spec,
            block_size=limits.block_size,
            max_model_len=limits.max_model_len,
            dtype=context.dtype,
            cache_dtype=context.cache_dtype,
        )
        self.attention = context.table.resolve(attention_signature(kv))(kv)
        self.num_blocks = pool_blocks(limits, context.kv_bytes, self.attention.bytes_per_block)
        with on_line("load", "kv", _KV_FIX):
            self.attention.allocate(self.num_blocks)
        self._pool = {storage_key(each) for each in self.attention.store.tensors()}
        self.num_swap_blocks = context.swap_bytes // self.attention.bytes_per_block
        self.swap_seconds: float = self._reserve_swap()
        self.runner = Runner(
            decoder=self.decoder,
            attention=self.attention,
            chain=context.chain,
            limits=limits,
            eos_token_ids=spec.eos_token_ids,
            device=context.device,
        )

    def warm_up(self) -> None:
        """Touch the pool, run the largest step and two decode steps through every op and
        measure their temporary memory, then forget them."""
        self._huge_pages(self.attention.store.tensors(), collapse=False)
        with on_line("load", "kv", _KV_FIX):
            self._touch()
        limits = msgspec.structs.replace(self._context.limits, num_blocks=self.num_blocks)
        prompts = prompt_plan(limits, self._options.warm_up_tokens)
        with on_line("load", "runtime", _STEP_FIX):
            with measured_peak(self._context.device) as peak:
                self.runner.run(prompts)
            for step in range(2):
                self.runner.run(decode_plan(prompts, step))
        self.step_peak = (peak.num_bytes, prompts.num_tokens)
        self.runner.rows.clear()
        give_back()

    def execute(self, plan: StepPlan) -> Done:
        """Compute the plan now: a CPU has no queue of its own.

        :raises CapacityError: temporary memory ran out; names the phase
        """
        try:
            self._results[plan.step] = self.runner.run(plan)
        except (MemoryError, RuntimeError):  # few steps need the words
            phase = "prefill" if plan.num_tokens > len(plan.spans) else "decode"
            with on_line(f"{phase} of step {plan.step}", "runtime", _STEP_FIX):
                raise
        return Done(plan.step)

    def collect(self, handle: Handle) -> StepResult:
        """The result is there already."""
        return self._results.pop(handle.step)

    def holdings(self, line: str = "") -> tuple[Holding, ...]:
        """Weights, KV pool, host slots, and what the kernels keep between steps."""
        held: list[Holding] = []
        if line in ("", "weights"):
            held += self._weights
        if line in ("", "kv", "swap"):
            held += [each for each in self._store() if line in ("", each.line)]
        if line in ("", "runtime") and isinstance(self.attention, Buffered):
            held += [Holding("runtime", "buffers", each) for each in self.attention.buffers()]
        if line in ("", "runtime"):
            held += [Holding("runtime", "batches", each) for each in self.runner.buffers()]
            held += [
                Holding("runtime", "program", each)
                for program in self._programs
                for each in program.buffers()
            ]
        return tuple(held)

    def _store(self) -> list[Holding]:
        """The KV store's tensors: the pool, and every other one is a host slot."""
        pool = self._pool
        return [
            Holding("kv", "pool", each)
            if storage_key(each) in pool
            else Holding("swap", "slots", each)
            for each in self.attention.store.tensors()
        ]

    def memory(self) -> dict[str, int]:
        """Bytes of every storage it holds, by ledger line; shared storages count once."""
        return bytes_by_line(self.holdings())

    def close(self) -> None:
        """Drop the model."""
        self.runner.rows.clear()

    def _huge_pages(self, tensors: Iterable[torch.Tensor], *, collapse: bool) -> None:
        if self._options.huge_pages:
            advise(tensors, collapse=collapse)

    def _touch(self) -> None:
        """Make the system give every page of the pool and the host slots now: one that it
        only promised could be missing when a request needs it."""
        touched: set[int] = set()
        for tensor in self.attention.store.tensors():
            storage = tensor.untyped_storage()
            if tensor.device.type == "cpu" and storage_key(tensor) not in touched:
                touched.add(storage_key(tensor))
                data = torch.empty(0, dtype=torch.uint8).set_(storage)
                data[::_PAGE].add_(0)

    def _reserve_swap(self) -> float:
        """Make the host slots. :return: seconds to save one block and load it again"""
        store = self.attention.store
        if not self.num_swap_blocks:
            return 0.0
        if isinstance(store, HostSlots):
            with on_line("load", "swap", "lower engine.swap_memory"):
                store.reserve_host(self.num_swap_blocks)
        began = time.perf_counter()
        measured: int = min(_MEASURED, self.num_swap_blocks, self.num_blocks)
        for slot in range(measured):
            store.save((BlockOp(kind="save", source=0, target=slot),))
            store.load((BlockOp(kind="load", source=slot, target=0),))
        return (time.perf_counter() - began) / measured


@hookimpl
def enginebay_executor(options: Options, context: ExecutorContext) -> Executor:
    """Load the model and build the executor."""
    return Local(options, context)
