"""The plan: what a model will take before anything of it is loaded.

From a stack and a checkpoint's metadata, or from plain numbers. KV of one token:
layers x 2 (keys and values) x KV heads x head_dim x bytes a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ..errors import CapacityError, EnginebayError, StackError
from ..flow import Frozen
from .lines import NOT_ASKED, Line, Part, Plan
from .process import resident

if TYPE_CHECKING:
    from ..hookspecs.executor import ExecutorContext
    from ..hookspecs.kernel import KVSpec
    from ..hookspecs.model import Limits, ModelSpec

BYTES: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "int8": 1}
"""Bytes of a value by dtype."""


class Asked(Frozen, frozen=True, kw_only=True):
    """What a plan is asked about, beside the model."""

    tokens: int = 0
    """Of one request, prompt and output together; 0: the stack's whole pool is planned."""
    requests: int = 0
    reserve: int = 0
    """Bytes to leave alone."""
    runtime: int | None = None
    """Bytes of buffers and temporary memory, where they were measured; else estimated."""
    device_memory: int = 0


class Numbers(Frozen, frozen=True, kw_only=True):
    """A model as a few numbers."""

    parameters: int = 0
    dtype: str = "bfloat16"
    layers: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    block_size: int = 16


def plan_numbers(model: Numbers, asked: Asked) -> Plan:
    """A plan from plain numbers.

    :raises StackError: an unknown dtype, or a number below 0
    """
    _check(model, asked)
    size = BYTES[model.dtype]
    token_bytes = model.layers * 2 * model.kv_heads * model.head_dim * size
    weights = Line(
        name="weights",
        planned=model.parameters * size,
        note=_missing(parameters=model.parameters)
        or f"{model.parameters:,} parameters, {model.dtype}",
    )
    blocks = asked.requests * -(-asked.tokens // model.block_size)
    block_bytes = token_bytes * model.block_size
    shape = {"layers": model.layers, "kv_heads": model.kv_heads, "head_dim": model.head_dim}
    missing = _missing(**shape, tokens=asked.tokens, requests=asked.requests)
    kv = Line(name="kv", note=missing) if missing else _kv(blocks, block_bytes, asked)
    swap = Line(name="swap", note=f"{NOT_ASKED}: a stack has it")
    runtime = Line(name="runtime", planned=asked.runtime or 0, note=_given(asked))
    return Plan(
        lines=_lines(weights, kv, swap, runtime, asked),
        token_bytes=token_bytes,
        block_size=model.block_size,
        block_bytes=block_bytes,
        tokens=asked.tokens,
        requests=asked.requests,
        device_memory=asked.device_memory,
    )


def plan_stack(context: ExecutorContext, asked: Asked = Asked()) -> Plan:  # noqa: B008 (frozen)
    """A plan of what an executor will load. No tensor is read.

    :raises CapacityError: ``engine.kv_memory`` holds no block
    """
    from .decisions import decisions, tied_copies
    from .rehearsal import rehearse, stored

    rehearsal = rehearse(context)
    held = rehearsal.held
    spec, block_bytes = _kv_shape(context)
    pool = pool_blocks(context.limits, context.kv_bytes, block_bytes)
    blocks = asked.requests * -(-asked.tokens // spec.block_size) or pool
    slots = context.swap_bytes // block_bytes
    swap = Line(name="swap", planned=slots * block_bytes, note=f"{slots} host slots")
    return Plan(
        lines=_lines(
            rehearsal.line,
            _kv(blocks, block_bytes, asked, spec.cache_dtype, _too_long(context, asked)),
            swap,
            _runtime(context, asked),
            asked,
            _opened(context),
        ),
        token_bytes=token_bytes(spec),
        block_size=spec.block_size,
        block_bytes=block_bytes,
        tokens=asked.tokens,
        requests=asked.requests,
        device_memory=asked.device_memory,
        host_is_elsewhere=context.device != "cpu",
        stored=stored(context.checkpoint),
        decisions=decisions(held, rehearsal.report, spec, blocks * block_bytes),
        quantization=rehearsal.report,
        copies=tied_copies(context.spec, held),
    )


def token_bytes(spec: KVSpec) -> int:
    """Logical KV bytes of one token, all layers; scales included."""
    kept = spec.head_dim * BYTES[spec.cache_dtype or spec.dtype] + (4 if spec.cache_dtype else 0)
    return spec.num_layers * 2 * spec.num_kv_heads * kept


def pool_blocks(limits: Limits, kv_bytes: int, block_bytes: int) -> int:
    """KV blocks that an engine makes: what is asked for, but never more than all of its
    sequences at full length could fill.

    :raises CapacityError: not one block
    """
    if limits.num_blocks:
        return limits.num_blocks
    num_blocks = kv_bytes // block_bytes
    if num_blocks < 1:
        msg = (
            f"load: line kv: engine.kv_memory holds {kv_bytes} bytes, one KV block of "
            f"{limits.block_size} tokens takes {block_bytes}; raise kv_memory"
        )
        raise CapacityError(msg)
    longest = -(-limits.max_model_len // limits.block_size) * limits.max_sequences
    return min(num_blocks, longest)


def step_estimate(spec: ModelSpec, num_tokens: int, num_logits: int, size: int) -> int:
    """Temporary bytes of a step at their highest, for a pre-norm decoder whose largest
    moments are the feed-forward (two inner widths, one activated) and the logits."""
    hidden = spec.hidden_size
    heads = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    widest = hidden + max(hidden + 2 * heads, 3 * spec.intermediate_size)
    logits = num_logits * (2 * hidden * size + 4 * spec.vocab_size)
    return max(num_tokens * widest * size, num_tokens * hidden * size + logits)


def _runtime(context: ExecutorContext, asked: Asked) -> Line:
    if asked.runtime is not None:
        return Line(name="runtime", planned=asked.runtime, note=_given(asked))
    limits, size = context.limits, BYTES[context.dtype]
    rows = min(limits.max_sequences, limits.max_step_tokens)
    step = step_estimate(context.spec, limits.max_step_tokens, rows, size)
    scored = step_estimate(context.spec, limits.max_step_tokens, limits.max_step_tokens, size)
    return Line(
        name="runtime",
        planned=step,
        note=f"estimated for a step of {limits.max_step_tokens} tokens, {rows} sequences",
        parts=(Part(name="a step that scores every prompt token", num_bytes=scored),),
    )


def _kv_shape(context: ExecutorContext) -> tuple[KVSpec, int]:
    """The KV spec and the bytes of a block, as the kernel lays it out."""
    from ..kv import attention_signature, kv_spec

    limits = context.limits
    spec = kv_spec(
        context.spec,
        block_size=limits.block_size,
        max_model_len=limits.max_model_len,
        dtype=context.dtype,
        cache_dtype=context.cache_dtype,
    )
    try:
        attention = context.table.resolve(attention_signature(spec))(spec)
    except EnginebayError:  # no kernel runs it here; the load will say so
        return spec, token_bytes(spec) * spec.block_size
    return spec, attention.bytes_per_block


def _kv(blocks: int, block_bytes: int, asked: Asked, kept: str = "", warning: str = "") -> Line:
    asks = asked.requests and asked.tokens
    each = f"{asked.requests} requests of {asked.tokens:,} tokens" if asks else ""
    note = ", ".join(filter(None, (f"{blocks:,} blocks", kept, each, warning)))
    return Line(name="kv", planned=blocks * block_bytes, note=note)


def _too_long(context: ExecutorContext, asked: Asked) -> str:
    """What to say of a request that the engine will refuse for its length."""
    longest, positions = context.limits.max_model_len, context.spec.max_positions
    if asked.tokens <= min(longest, positions):
        return ""
    whose = "the model's" if longest >= positions else "engine.max_model_len ="
    return f"{asked.tokens:,} tokens are longer than {whose} {min(longest, positions):,}"


def _missing(**given: int) -> str:
    """The note of a line for which numbers are missing; empty: it has them all."""
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if not value]
    return f"{NOT_ASKED}: give {', '.join(names)}" if names else ""


def _opened(context: ExecutorContext) -> Line:
    """What opening the model took already: tokenizer, templates, the files' metadata."""
    took = max(resident()[0] - context.before_load, 0) if context.before_load else 0
    return Line(name="host", planned=took, note="tokenizer and metadata, measured")


def _lines(
    weights: Line,
    kv: Line,
    swap: Line,
    runtime: Line,
    asked: Asked,
    host: Line = Line(name="host", note=f"{NOT_ASKED}: a stack has it"),  # noqa: B008 (frozen)
) -> tuple[Line, ...]:
    return (
        weights,
        kv,
        swap,
        runtime,
        Line(name="communication", note="one device"),
        host,
        Line(name="reserve", planned=asked.reserve, note="left alone" if asked.reserve else ""),
    )


def _given(asked: Asked) -> str:
    return "as given" if asked.runtime is not None else f"{NOT_ASKED}: give --runtime"


def _check(model: Numbers, asked: Asked) -> None:
    if model.dtype not in BYTES:
        raise StackError(f"--dtype {model.dtype!r}: one of {', '.join(BYTES)}")
    for name, value in (msgspec.to_builtins(model) | msgspec.to_builtins(asked)).items():
        if isinstance(value, int) and value < (1 if name == "block_size" else 0):
            raise StackError(f"--{name.replace('_', '-')} {value}: too small")
