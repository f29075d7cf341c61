"""Paged attention in plain torch, written to be read, and row-invariant.

Softmax over the context is accumulated tile by tile (online softmax: Milakov and
Gimelshein, arXiv 1805.02867). Tiles of 64 positions start at absolute position 0, tiles
of 16 query rows are filled up with zeros, and keys and values always come back from the
cache: a row's result does not depend on chunk, batch, block size or split. A tile that a
row does not see adds exact zeros, so it makes no difference whether it is visited.
"""

from dataclasses import dataclass

import torch

from enginebay.batch import Batch
from enginebay.hookspecs.kernel import KVSpec

from .reference_store import ReferenceStore
from .row_ops import sum_last

CONTEXT = 64
"""Positions of a context tile."""
QUERIES = 16
"""Rows of a query tile."""


@dataclass(frozen=True)
class Reach:
    """One sequence's rows of this step and the cache slots that they may read."""

    first_row: int
    num_rows: int
    context: int
    """Positions in the cache, this step's own included."""
    slots: torch.Tensor
    """int64 [ceil(context / 64) * 64]; past the context they repeat the first, since
    even a weight of 0 does not silence a NaN that another request left in a block"""


class ReferenceAttention:
    """Causal attention of one step's rows over their cached positions."""

    def __init__(self, spec: KVSpec, device: str) -> None:
        self.spec = spec
        self.device = device
        self.kept: ReferenceStore | None = None
        self.batch: Batch | None = None
        self.reaches: list[Reach] = []

    @property
    def store(self) -> ReferenceStore:
        """:raises RuntimeError: before ``allocate``"""
        if self.kept is None:
            msg = "the KV store is used before allocate(num_blocks)"
            raise RuntimeError(msg)
        return self.kept

    @property
    def bytes_per_block(self) -> int:
        """Cache bytes of one block over all layers."""
        return ReferenceStore.block_bytes(self.spec)

    def allocate(self, num_blocks: int) -> None:
        """Make room for the cache; it starts as zeros."""
        self.kept = ReferenceStore(self.spec, num_blocks, self.device)

    def buffers(self) -> tuple[torch.Tensor, ...]:
        """The step's batch and cache slots, which are kept until the next."""
        held = () if self.batch is None else self.batch.tensors()
        return (*held, *(reach.slots for reach in self.reaches))

    def prepare(self, batch: Batch) -> None:
        """Turn block tables into cache slots, once a step."""
        self.batch = batch
        starts, contexts = batch.row_starts.tolist(), batch.contexts.tolist()
        self.reaches = [
            Reach(
                first_row=first,
                num_rows=after - first,
                context=context,
                slots=_slots(batch.tables[number], context, batch.block_size),
            )
            for number, (first, after, context) in enumerate(
                zip(starts[:-1], starts[1:], contexts, strict=True)
            )
        ]

    def write(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cos_sin: torch.Tensor,
    ) -> None:
        """Rotate q in place, rotate k, and put k and v in the cache."""
        rotate(q, cos_sin)
        rotate(k, cos_sin)
        self.store.put(layer, self._current().slots, k, v)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """q [T, Hq, D], rotated -> [T, Hq * D]."""
        output = q.new_empty(q.shape)
        for reach in self.reaches:
            end = reach.first_row + reach.num_rows
            for first in range(reach.first_row, end, QUERIES):
                rows = slice(first, min(first + QUERIES, end))
                position = reach.context - end + first
                output[rows] = self._tile(layer, q[rows], position, reach)
        return output.flatten(1)

    def _current(self) -> Batch:
        if self.batch is None:
            msg = "attention is used before prepare(batch)"
            raise RuntimeError(msg)
        return self.batch

    def _tile(self, layer: int, q: torch.Tensor, position: int, reach: Reach) -> torch.Tensor:
        """At most 16 rows of one sequence, from ``position`` on: q and result [r, Hq, D]."""
        spec, rows = self.spec, q.shape[0]
        padded = q.new_zeros((QUERIES, *q.shape[1:]))
        padded[:rows] = q * spec.scale
        # [Hk, G * 16, D]: the query heads of one KV head stand together.
        grouped = padded.view(QUERIES, spec.num_kv_heads, -1, spec.head_dim)
        queries = grouped.permute(1, 2, 0, 3).reshape(spec.num_kv_heads, -1, spec.head_dim)

        softmax = OnlineSoftmax(queries)
        last = position + rows - 1
        window = spec.sliding_window or last + 1
        for number in range(max(0, position - window + 1) // CONTEXT, last // CONTEXT + 1):
            keys, values = self._read(layer, reach, number)
            seen = _seen(position, rows, number, window, q.device)
            scores = capped(queries @ keys, spec.soft_cap)
            softmax.add(scores, values, seen.repeat(queries.shape[1] // QUERIES, 1))
        mixed = softmax.result().view(spec.num_kv_heads, -1, QUERIES, spec.head_dim)
        return mixed.permute(2, 0, 1, 3).reshape(padded.shape)[:rows]

    def _read(self, layer: int, reach: Reach, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [Hk, D, 64] and values [Hk, 64, D] of one context tile."""
        slots = reach.slots[number * CONTEXT : (number + 1) * CONTEXT]
        keys, values = self.store.take(layer, slots)
        return keys.permute(1, 2, 0).contiguous(), values.transpose(0, 1).contiguous()


class OnlineSoftmax:
    """softmax(scores) @ values, one context tile at a time, for rows of queries."""

    def __init__(self, queries: torch.Tensor) -> None:
        shape = (*queries.shape[:-1], 1)
        self.top = queries.new_full(shape, float("-inf"))
        self.total = queries.new_zeros(shape)
        self.mixed = torch.zeros_like(queries)

    def add(self, scores: torch.Tensor, values: torch.Tensor, seen: torch.Tensor) -> None:
        """scores [Hk, R, 64], values [Hk, 64, D], seen bool [R, 64]."""
        scores = scores.masked_fill(~seen, float("-inf"))
        top = torch.maximum(self.top, scores.amax(-1, keepdim=True))
        # A row that has seen nothing yet has no maximum: -inf minus -inf is NaN.
        base = top.masked_fill(top == float("-inf"), 0.0)
        weights, fade = torch.exp(scores - base), torch.exp(self.top - base)
        self.total = self.total * fade + sum_last(weights)
        self.mixed = self.mixed * fade + weights @ values
        self.top = top

    def result(self) -> torch.Tensor:
        """[Hk, R, D]; zeros for rows that saw nothing."""
        return self.mixed / self.total.masked_fill(self.total == 0, 1.0)


def capped(scores: torch.Tensor, cap: float | None) -> torch.Tensor:
    """cap * tanh(scores / cap), or the scores as they are without a cap."""
    return scores if cap is None else cap * torch.tanh(scores / cap)


def rotate(x: torch.Tensor, cos_sin: torch.Tensor) -> None:
    """Turn the first rotary_dim values of every head, in place ("rotate half").

    :param x: [T, heads, D]
    :param cos_sin: float32 [T, rotary_dim]: cosines, then sines
    """
    half = cos_sin.shape[1] // 2
    cos, sin = (part[:, None].to(x.dtype) for part in torch.split(cos_sin, half, dim=1))
    left, right = x[..., :half].clone(), x[..., half : 2 * half].clone()
    x[..., :half] = left * cos - right * sin
    x[..., half : 2 * half] = right * cos + left * sin


def _slots(table: torch.Tensor, context: int, block_size: int) -> torch.Tensor:
    """int64 [W]: the cache slot of every position of a sequence, in whole tiles."""
    width = -(-context // CONTEXT) * CONTEXT
    positions = torch.arange(width, device=table.device)
    positions[context:] = 0
    return table[positions // block_size].long() * block_size + positions % block_size


def _seen(position: int, rows: int, number: int, window: int, device: torch.device) -> torch.Tensor:
    """bool [16, 64]: which positions of context tile ``number`` a query tile looks at.

    :param position: of the tile's first row; rows past ``rows`` are padding, see nothing
    """
    queries = torch.arange(QUERIES, device=device)
    queries = torch.where(queries < rows, queries + position, -1)[:, None]
    keys = torch.arange(CONTEXT, device=device) + number * CONTEXT
    return (keys <= queries) & (keys > queries - window)
