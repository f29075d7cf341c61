"""Assembly: a stack becomes built plugins and an engine. The only caller of hooks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from .admission import AdmissionChain
from .assembler import Assembler, no_progress
from .dispatch import KernelTable
from .drafting import Drafting
from .hookspecs.admission import AdmissionContext
from .hookspecs.allocator import AllocatorContext
from .hookspecs.client import ClientContext
from .hookspecs.detokenizer import DetokenizerContext
from .hookspecs.drafter import DrafterContext
from .hookspecs.executor import Swapping
from .hookspecs.frontend import FrontendContext
from .hookspecs.observer import ObserverContext
from .hookspecs.scheduler import SchedulerContext
from .identity import cache_identity, served_name, service_version
from .intake import Intake
from .meter import Meter
from .preparation import prepare
from .sampling import Chain
from .timeline import Timeline
from .watch import Watch
from .wiring import wire

if TYPE_CHECKING:
    from .engine import Engine
    from .hookspecs.client import EngineClient
    from .hookspecs.executor import Executor
    from .hookspecs.format import Checkpoint, TextAssets
    from .hookspecs.model import Limits, ModelSpec
    from .hookspecs.quant import Quantizer
    from .hookspecs.sink import SinkKind
    from .hookspecs.source import Files, Progress
    from .registry import Registry
    from .stack import Stack


@dataclass
class Assembly:
    """A stack with its plugins built."""

    stack: Stack
    registry: Registry
    engine: Engine
    client: EngineClient
    sinks: dict[str, SinkKind]
    table: KernelTable
    spec: ModelSpec
    checkpoint: Checkpoint
    files: Files
    limits: Limits
    executor: Executor
    quantizer: Quantizer
    name: str
    """What callers call the model."""
    version: str
    """The service version: a hash over every chosen plugin, the model and the contracts."""
    seconds: dict[str, float]
    """How long each phase of the start took."""


def assemble(
    stack: Stack, progress: Progress = no_progress, build: Assembler | None = None
) -> Assembly:
    """Build a stack down to a client; the engine is not started yet.

    :param build: of this stack, where parts of it were built before
    :raises StackError: the stack file is wrong
    :raises PluginError: a chosen plugin can't be used
    :raises ModelError: the model can't be found, read or accounted for
    """
    options = stack.engine
    build = Assembler(stack, progress) if build is None else build
    prepared = prepare(build)
    context, files = prepared.context, prepared.files
    spec, checkpoint = context.spec, context.checkpoint
    executor = build.one("executor", context)
    num_slots = executor.num_swap_blocks if isinstance(executor, Swapping) else 0
    limits = msgspec.structs.replace(
        context.limits, num_blocks=executor.num_blocks, num_swap_blocks=num_slots
    )
    build.lap("load")
    if options.warm_up:
        executor.warm_up()
    build.lap("warm_up")
    name = options.served_name or served_name(options.model)
    engine = _engine(build, executor, context.chain, limits, spec, checkpoint, files, name)
    version = service_version(build.stack, build.registry, files)
    assembly = Assembly(
        stack=stack,
        registry=build.registry,
        engine=engine,
        client=build.one("client", ClientContext(engine=engine)),
        sinks=build.sinks,
        table=context.table,
        spec=spec,
        checkpoint=checkpoint,
        files=files,
        limits=limits,
        executor=executor,
        quantizer=context.quantizer,
        name=name,
        version=version,
        seconds=build.seconds,
    )
    engine.info = _info(assembly)
    return assembly


def _engine(
    build: Assembler,
    executor: Executor,
    chain: Chain,
    limits: Limits,
    spec: ModelSpec,
    checkpoint: Checkpoint,
    files: Files,
    name: str,
) -> Engine:
    options = build.stack.engine
    text = checkpoint.text
    timeline = Timeline(capacity_requests=max(1024, 4 * limits.max_sequences))
    block_bytes = executor.memory().get("kv", 0) // max(limits.num_blocks, 1)
    observers = build.chain(
        "observers",
        lambda entry: ObserverContext(
            model_name=name, limits=limits, timeline=timeline, block_bytes=block_bytes
        ),
    )
    watch = Watch(observers, timeline)
    allocator = build.one(
        "allocator",
        AllocatorContext(
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            max_model_len=limits.max_model_len,
        ),
    )
    scheduler = build.one("scheduler", SchedulerContext(limits=limits))
    detokenizer = build.one("detokenizer", DetokenizerContext(text=text))
    meter = Meter()
    intake = Intake(
        door=_admission(build, "door", limits, text),
        budget=_admission(build, "budget", limits, text),
        frontends=build.chain("frontends", lambda entry: FrontendContext(text=text, spec=spec)),
        detokenizer=detokenizer,
        chain=chain,
        limits=limits,
        identity=cache_identity(build.stack, files, spec),
        eos_token_ids=spec.eos_token_ids,
        defaults=chain.defaults(checkpoint.generation) if options.generation_defaults else {},
        max_logprobs=options.max_logprobs,
        timeline=timeline,
        clock=time.monotonic,
        load=meter.load,
        refused=watch.refused,
        released=meter.finished,
    )
    return wire(
        intake=intake,
        scheduler=scheduler,
        allocator=allocator,
        executor=executor,
        detokenizer=detokenizer,
        watch=watch,
        meter=meter,
        drafting=_drafting(build, limits),
        limits=limits,
        stall_seconds=options.stall_seconds,
    )


def _admission(
    build: Assembler, slot: Literal["door", "budget"], limits: Limits, text: TextAssets
) -> AdmissionChain:
    longest = max(map(len, text.tokenizer.get_vocab()), default=0)
    return AdmissionChain(
        build.chain(
            slot,
            lambda entry: AdmissionContext(
                name=entry.name, limits=limits, chain=slot, longest_token=longest
            ),
        )
    )


def _drafting(build: Assembler, limits: Limits) -> Drafting | None:
    if not build.stack.chain("drafter"):
        return None
    context = DrafterContext(vocab_size=limits.vocab_size, max_model_len=limits.max_model_len)
    drafter = build.one("drafter", context)
    options = build.stack.engine
    return Drafting(build.stack.one("drafter").name, drafter, options.num_drafts, limits.vocab_size)


def _info(assembly: Assembly) -> dict[str, Any]:
    return {
        "model": assembly.name,
        "origin": assembly.files.origin,
        "revision": assembly.files.revision,
        "architecture": assembly.spec.architecture,
        "stack": assembly.stack.name,
        "service_version": assembly.version,
        "row_invariant": assembly.table.row_invariant,
        "limits": msgspec.to_builtins(assembly.limits),
        "memory": assembly.executor.memory(),
        "seconds": assembly.seconds,
        "has_chat_template": bool(assembly.checkpoint.text.templates),
    }
