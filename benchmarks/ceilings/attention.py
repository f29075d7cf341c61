"""Cache writes and attention, timed over the layers of a cache too large for the caches."""

from collections.abc import Iterator
from functools import partial

import msgspec
import torch

from enginebay.conformance.batches import Stretch, make_batch
from enginebay.dispatch import KernelTable
from enginebay.hookspecs.kernel import Attention, KVSpec
from enginebay.kv import attention_signature

from .ops import seconds
from .recorder import told
from .work import Timed, attention_work

MOST_KV = 192 * 2**20
"""Bytes of keys and values that an attention is measured over; layers are left out above."""


def time_attention(
    table: KernelTable, spec: KVSpec, rotary: int, rows: int, context: int, rounds: int
) -> Iterator[Timed]:
    """Cache write and attention: up to 16 rows are so many sequences that decode at
    ``context``, more are prompts whose last rows end there."""
    each = 1 if rows <= 16 else min(rows, context)
    sequences = rows // each
    each_token = token_bytes(table, spec)
    layers = max(1, min(spec.num_layers, MOST_KV // (sequences * context * each_token)))
    spec = msgspec.structs.replace(spec, num_layers=layers)
    attention: Attention = table.resolve(attention_signature(spec))(spec)
    blocks = -(-context // spec.block_size)
    attention.allocate(sequences * blocks)
    for tensor in attention.store.tensors():
        tensor.fill_(1 if not tensor.is_floating_point() else 0.01)  # zeros may be one page
    tables = [range(n * blocks, (n + 1) * blocks) for n in range(sequences)]
    stretches = [Stretch([0] * context, context - each, list(table)) for table in tables]
    attention.prepare(make_batch(stretches, spec.block_size))
    writes, attends = _attention_seconds(attention, spec, rotary, sequences * each, rounds)
    written, attended = attention_work(spec, each_token, sequences, each, context)
    kernel = told(table, attention_signature(spec))
    rows = sequences * each
    yield Timed(f"attention write, context {context:,}", kernel, rows, writes, written)
    yield Timed(f"attention attend, context {context:,}", kernel, rows, attends, attended)


def _attention_seconds(
    attention: Attention, spec: KVSpec, rotary: int, rows: int, rounds: int
) -> tuple[float, float]:
    """Fastest means over layers of (write, attend)."""
    q, k, v = (
        torch.randn(rows, heads, spec.head_dim)
        for heads in (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    )
    angles = torch.rand(rows, rotary // 2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    samples = []
    for _ in range(rounds):
        write = attend = 0.0
        for layer in range(spec.num_layers):
            write += seconds(partial(attention.write, layer, q, k, v, cos_sin))
            attend += seconds(partial(attention.attend, layer, q))
        samples.append((write / spec.num_layers, attend / spec.num_layers))
    return min(each for each, _ in samples), min(each for _, each in samples)


def token_bytes(table: KernelTable, spec: KVSpec) -> int:
    """Cache bytes of one token in one layer, as the kernel lays them out."""
    attention: Attention = table.resolve(attention_signature(spec))(spec)
    return attention.bytes_per_block // spec.block_size // spec.num_layers
