"""Prompts for an attention kernel alone, every way to compute them, and what is right.

Blocks are handed out in no order, and a block that nobody has written holds NaN, as one
may that an earlier request left behind: whatever a kernel multiplies by 0 shows.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch

from enginebay.flow import BlockOp
from enginebay.hookspecs.kernel import Attention, KVSpec

from .batches import Stretch, make_batch

MakeAttention = Callable[[KVSpec], Attention]
Step = Sequence[tuple[int, int]]
"""What one step computes: (prompt, rows) in the batch's order."""

LAYER: Final = 1
"""The layer that the checks look at; its neighbours hold other values."""


@dataclass(frozen=True)
class Prompt:
    """One sequence's queries, keys and values before rotation, C positions."""

    q: torch.Tensor
    """float32 [C, Hq, D]"""
    k: torch.Tensor
    """float32 [C, Hk, D]"""
    v: torch.Tensor
    """float32 [C, Hk, D]"""
    cos_sin: torch.Tensor
    """float32 [C, rotary_dim]"""

    def __len__(self) -> int:
        return self.q.shape[0]


def make_spec(
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    block_size: int = 16,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    cache_dtype: str = "",
) -> KVSpec:
    """Three layers of a small model."""
    return KVSpec(
        num_layers=3,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        max_model_len=4096,
        scale=head_dim**-0.5,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        cache_dtype=cache_dtype,
    )


def make_prompt(spec: KVSpec, length: int, rotary_dim: int, seed: int) -> Prompt:
    """Random rows; rotary_dim is even and at most head_dim."""
    noise = torch.Generator().manual_seed(seed)
    angles = torch.rand((length, rotary_dim // 2), generator=noise) * 6.3
    heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    q, k, v = (torch.randn((length, n, spec.head_dim), generator=noise) for n in heads)
    return Prompt(q, k, v, torch.cat((angles.cos(), angles.sin()), dim=1))


def make_exact_prompt(spec: KVSpec, length: int, seed: int) -> Prompt:
    """Keys and values that int8 holds without an error, under scales of their own: the
    powers 1/64 and 1/128 of 2, times integers of which the greatest is 127. Nothing is rotated."""
    noise = torch.Generator().manual_seed(seed)
    dims, heads = spec.head_dim, spec.num_kv_heads

    def exact() -> torch.Tensor:
        codes = torch.randint(-127, 128, (length, heads, dims), generator=noise)
        codes[..., 0] = 127
        return codes * 2.0 ** torch.randint(-7, -5, (length, heads, 1), generator=noise)

    q = torch.randn((length, spec.num_heads, dims), generator=noise)
    return Prompt(q, exact(), exact(), torch.zeros((length, 0)))


def expected(spec: KVSpec, prompt: Prompt) -> torch.Tensor:
    """Causal softmax attention of one prompt in float64: [C, Hq * D]."""
    group = spec.num_heads // spec.num_kv_heads
    q = rotated(prompt.q, prompt.cos_sin).transpose(0, 1)
    k = rotated(prompt.k, prompt.cos_sin).repeat_interleave(group, 1).transpose(0, 1)
    v = prompt.v.double().repeat_interleave(group, 1).transpose(0, 1)
    distance = torch.arange(len(prompt))[:, None] - torch.arange(len(prompt))
    hidden = distance < 0
    if spec.sliding_window is not None:
        hidden |= distance >= spec.sliding_window
    scores = q @ k.transpose(1, 2) * spec.scale
    if spec.soft_cap is not None:
        scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
    scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


def rotated(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """float64 [C, heads, D], the half-split rotation applied."""
    half = cos_sin.shape[1] // 2
    cos, sin = cos_sin.double()[:, None, :half], cos_sin.double()[:, None, half:]
    left, right, rest = torch.split(x.double(), [half, half, x.shape[2] - 2 * half], dim=2)
    return torch.cat((left * cos - right * sin, right * cos + left * sin, rest), dim=2)


class AttentionWorld:
    """One attention kernel with a cache, and the prompts that run through it."""

    def __init__(self, make: MakeAttention, spec: KVSpec, prompts: Sequence[Prompt]) -> None:
        self.spec = spec
        self.prompts = prompts
        self.outputs = [torch.zeros((len(p), spec.num_heads * spec.head_dim)) for p in prompts]
        self.done = [0] * len(prompts)
        needed = [-(-len(prompt) // spec.block_size) for prompt in prompts]
        free = list(range(sum(needed) + 2))
        random.Random(len(free)).shuffle(free)
        self.tables = [[free.pop() for _ in range(count)] for count in needed]
        self.spare = free.pop()
        self.attention = make(spec)
        self.attention.allocate(sum(needed) + 2)
        poison = torch.full((self.attention.bytes_per_block // 4,), float("nan")).numpy().tobytes()
        for block_id in range(sum(needed) + 2):
            self.attention.store.import_((block_id,), poison)

    def move(self, how: str) -> None:
        """Carry every block to another place: by ``copy``, by ``swap`` or by ``export``."""
        store = self.attention.store
        old = [block for table in self.tables for block in table]
        new = [self.spare, *old[:-1]] if how == "copy" else old[::-1]
        if how == "copy":
            store.copy(_moves("copy", old, new))
        elif how == "swap":
            store.save(_moves("save", old, range(len(old))))
            store.load(_moves("load", range(len(new)), new))
        else:
            store.import_(tuple(new), store.export(tuple(old)))
        self.spare = old[-1]
        places = dict(zip(old, new, strict=True))
        self.tables = [[places[block] for block in table] for table in self.tables]

    def run(self, steps: Sequence[Step]) -> list[torch.Tensor]:
        """Compute the prompts step by step: [C, Hq * D] each, as the kernel gave them."""
        for step in steps:
            self._step(step)
        return self.outputs

    def _step(self, step: Step) -> None:
        stretches = [
            Stretch([0] * (self.done[number] + rows), self.done[number], self.tables[number])
            for number, rows in step
        ]
        self.attention.prepare(make_batch(stretches, self.spec.block_size))
        q, k, v, cos_sin = (
            torch.cat([getattr(self.prompts[n], name)[self._rows(n, rows)] for n, rows in step])
            for name in ("q", "k", "v", "cos_sin")
        )
        for layer in (LAYER - 1, LAYER + 1):
            self.attention.write(layer, q.clone(), k * 2, v * -3, cos_sin)
        self.attention.write(LAYER, q, k, v, cos_sin)
        output = self.attention.attend(LAYER, q)
        for (number, rows), part in zip(
            step, torch.split(output, [rows for _, rows in step]), strict=True
        ):
            self.outputs[number][self._rows(number, rows)] = part
            self.done[number] += rows

    def _rows(self, number: int, rows: int) -> slice:
        return slice(self.done[number], self.done[number] + rows)


def _moves(
    kind: Literal["copy", "save", "load"], sources: Iterable[int], targets: Iterable[int]
) -> list[BlockOp]:
    pairs = zip(sources, targets, strict=True)
    return [BlockOp(kind=kind, source=source, target=target) for source, target in pairs]


def in_chunks(prompts: Sequence[Prompt], size: int, *, together: bool = False) -> list[Step]:
    """Steps that compute ``size`` rows of a prompt at a time, or of all of them at once."""
    parts = [
        [(number, min(size, len(prompt) - at)) for at in range(0, len(prompt), size)]
        for number, prompt in enumerate(prompts)
    ]
    if not together:
        return [[part] for steps in parts for part in steps]
    longest = max(len(steps) for steps in parts)
    return [[steps[at] for steps in parts if at < len(steps)] for at in range(longest)]
