"""What an attention kernel must do, as plain functions over the callable that it offers.

It is held against float64 torch, and must give a row the same bits wherever it stands
when it is declared row-invariant. What only some kernels can do is judged where it is
offered: a soft cap, and keys and values in int8.
"""

import dataclasses
import random
from typing import Any, Final

import torch

from enginebay.hookspecs.kernel import Kernels, KVSpec, OpSignature

from .attention_world import (
    LAYER,
    AttentionWorld,
    MakeAttention,
    Prompt,
    expected,
    in_chunks,
    make_exact_prompt,
    make_prompt,
    make_spec,
    rotated,
)
from .check import CheckList, Skip, require
from .closeness import close, same
from .kernel_offers import usable

ATTENTION_CHECKS: Final = CheckList()
"""The subject is a kernel plugin as its hook returned it."""
ATTENTION: Final = 1e-5
"""Greatest absolute error of attention over values of unit variance. One position too
many or too few in a context of 200 is an error of about 5e-3."""
INVARIANT: Final = "kernel/attention_invariant"
INT8: Final = "kernel/attention_int8"
SOFT_CAP: Final = 5.0
"""Scores of unit variance are well below Gemma 2's 50, where a cap does little."""


def check_attention(
    make: MakeAttention, *, seed: int = 0, num_cases: int = 8, soft_cap: float | None = None
) -> None:
    """Softmax over exactly the positions a row may see, for mixed steps of all shapes."""
    chance = random.Random(seed)
    for number in range(num_cases):
        spec, prompts = _random_case(chance, soft_cap)
        steps = in_chunks(prompts, chance.choice((1, 7, 64, 1000)), together=True)
        outputs = AttentionWorld(make, spec, prompts).run(steps)
        for prompt, output in zip(prompts, outputs, strict=True):
            where = f"case {number}: {len(prompt)} positions of {spec}"
            close("kernel/attention", output, expected(spec, prompt), ATTENTION, where)


def check_int8_cache(make: MakeAttention, *, soft_cap: float | None = None) -> None:
    """Keys and values that int8 holds exactly come back exactly, each under its own scale;
    others are off by no more than half a step each makes of the output."""
    for number, (heads, kv_heads, dims, block) in enumerate(((6, 2, 24, 16), (2, 2, 64, 24))):
        spec = make_spec(heads, kv_heads, dims, block, None, soft_cap, "int8")
        for prompt in (make_exact_prompt(spec, 150, number), make_prompt(spec, 90, dims, number)):
            steps = in_chunks([prompt], 40)
            output = AttentionWorld(make, spec, [prompt]).run(steps)[0]
            error = (output.double() - expected(spec, prompt)).abs()
            bound = ATTENTION if not prompt.cos_sin.shape[1] else _rounding(spec, prompt)
            worst = float((error / bound).nan_to_num(float("inf")).max())
            kind = "exact" if not prompt.cos_sin.shape[1] else "rounded"
            require(
                output.dtype == torch.float32 and worst <= 1.0,
                INT8,
                f"{kind} keys and values of {spec}: {worst:.3g} times the error allowed",
            )


def check_moved_blocks(make: MakeAttention, *, cache_dtype: str = "") -> None:
    """Blocks that were copied, swapped out and in, or exported and imported, are as before."""
    spec = make_spec(6, 2, 24, 16, None, None, cache_dtype)
    prompts = [make_prompt(spec, length, 16, length) for length in (150, 40)]
    steps = in_chunks(prompts, 20, together=True)
    still = AttentionWorld(make, spec, prompts).run(steps)
    for how in ("copy", "swap", "export"):
        world = AttentionWorld(make, spec, prompts)
        for number, step in enumerate(steps):
            world.run([step])
            if number in (1, 4):
                world.move(how)
        for found, right in zip(world.outputs, still, strict=True):
            close("kernel/attention_store", found, right.double(), ATTENTION, f"after {how}")


def check_views(make: MakeAttention, *, cache_dtype: str = "") -> None:
    """Rows that lie apart, as those of a fused projection do, are read and turned there."""
    spec = make_spec(4, 2, 16, cache_dtype=cache_dtype)
    prompt = make_prompt(spec, 20, 16, 3)
    apart = AttentionWorld(make, spec, [prompt]).run([[(0, 20)]])[0]
    fused = torch.cat([part.flatten(1) for part in (prompt.q, prompt.k, prompt.v)], dim=1)
    parts = torch.split(fused, [64, 32, 32], dim=1)
    q, k, v = (part.view(20, -1, 16) for part in parts)
    world = AttentionWorld(make, spec, [dataclasses.replace(prompt)])
    world.run([[(0, 20)]])
    world.attention.write(LAYER, q, k, v, prompt.cos_sin)
    found = world.attention.attend(LAYER, q)
    close("kernel/attention_views", found, apart.double(), ATTENTION, "rows of one projection")
    turned = rotated(prompt.q, prompt.cos_sin)
    close("kernel/attention_views", q.contiguous(), turned, ATTENTION, "queries turned in place")


def check_attention_invariance(
    make: MakeAttention,
    *,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    cache_dtype: str = "",
    block_sizes: tuple[int, ...] = (4, 16, 32, 24, 128),
) -> None:
    """A row's bits do not depend on chunks, block size, neighbours or their order."""
    rest = (sliding_window, soft_cap, cache_dtype)
    plain = make_spec(6, 2, 24, 16, *rest)
    prompts = [make_prompt(plain, length, 16, length) for length in (150, 1, 64, 33)]
    first = AttentionWorld(make, plain, prompts[:1]).run(in_chunks(prompts[:1], 1000))[0]
    for block_size in block_sizes:
        spec = make_spec(6, 2, 24, block_size, *rest)
        for size in (1, 7, 64, 1000):
            told = f"attention in chunks of {size}, blocks of {block_size}"
            steps = in_chunks(prompts, size, together=True)
            same(INVARIANT, told, AttentionWorld(make, spec, prompts).run(steps)[0], first)
    others = [*prompts[1:], *(make_prompt(plain, 40, 16, seed) for seed in range(28))]
    crowd = [*others, prompts[0]]
    last = AttentionWorld(make, plain, crowd).run(in_chunks(crowd, 50, together=True))[-1]
    same(INVARIANT, "attention among 31 others", last, first)


@ATTENTION_CHECKS.add("kernel/attention")
def attention_is_right(kernels: Kernels) -> None:
    """``attention`` sees exactly what each row may see, and mixes it within float32."""
    for make in _makers(kernels):
        check_attention(make)


@ATTENTION_CHECKS.add("kernel/attention_views")
def views_are_taken(kernels: Kernels) -> None:
    """``attention`` takes queries, keys and values whose rows lie apart."""
    for make in _makers(kernels):
        check_views(make)


@ATTENTION_CHECKS.add("kernel/attention_store")
def moved_blocks_are_as_before(kernels: Kernels) -> None:
    """``attention`` reads the same from blocks that were copied, swapped or exported."""
    for make in _makers(kernels):
        check_moved_blocks(make)


@ATTENTION_CHECKS.add("kernel/attention_soft_cap")
def soft_caps_are_right(kernels: Kernels) -> None:
    """``attention`` that offers a soft cap bends its scores by the hyperbolic tangent."""
    for make in _makers(kernels, features=("soft_cap",)):
        check_attention(make, num_cases=4, soft_cap=SOFT_CAP)


@ATTENTION_CHECKS.add(INT8)
def int8_caches_are_right(kernels: Kernels) -> None:
    """``attention`` that offers int8 keeps each vector within half a step of its own scale,
    and its blocks move with their scales."""
    for make in _makers(kernels, scheme="int8"):
        check_int8_cache(make)
        check_views(make, cache_dtype="int8")
        check_moved_blocks(make, cache_dtype="int8")


@ATTENTION_CHECKS.add(INVARIANT)
def attention_is_invariant(kernels: Kernels) -> None:
    """``attention`` declared row-invariant gives a row the same bits wherever it stands."""
    for make in _makers(kernels, invariant=True):
        check_attention_invariance(make)
        check_attention_invariance(make, sliding_window=50)
    cases: dict[str, dict[str, Any]] = {
        "int8": {"scheme": "int8"},
        "soft_cap": {"features": ("soft_cap",)},
    }
    for name, signature in cases.items():
        extra: dict[str, Any] = {"cache_dtype": name} if name == "int8" else {"soft_cap": SOFT_CAP}
        for make in _makers(kernels, invariant=True, **signature):
            check_attention_invariance(make, block_sizes=(16, 24), **extra)


def _makers(
    kernels: Kernels, *, scheme: str = "", features: tuple[str, ...] = (), invariant: bool = False
) -> list[MakeAttention]:
    """What is offered for float32 attention; only what is declared row-invariant if asked.

    :raises Skip: nothing is
    """
    signature = OpSignature(op="attention", scheme=scheme, features=features)
    makers = [
        offer.call for offer in usable(kernels, signature) if offer.row_invariant or not invariant
    ]
    if not makers and not invariant:
        what = " ".join((scheme, *features)) or "float32"
        msg = f"no kernel for attention ({what}) is offered"
        raise Skip(msg)
    return makers


def _rounding(spec: KVSpec, prompt: Prompt) -> torch.Tensor:
    """What half a step of every key and value can do to an output at most: [C, Hq * D].

    A key's step moves a row's scores by up to e = |q|_1 * step / 2 * scale, so its weights
    by factors of exp(-2 e) .. exp(2 e) and its mix of values by (exp(2 e) - 1) times the
    greatest value. A cap's slope is 1 at most.
    """
    step = rotated(prompt.k, prompt.cos_sin).abs().amax() / 127
    greatest = prompt.v.double().abs().amax()
    moved = rotated(prompt.q, prompt.cos_sin).abs().sum(-1) * step / 2 * spec.scale
    bound = greatest * torch.expm1(2 * moved) + greatest / 254 + ATTENTION
    return bound[..., None].expand(-1, -1, spec.head_dim).flatten(1)


def _random_case(chance: random.Random, soft_cap: float | None) -> tuple[KVSpec, list[Prompt]]:
    kv_heads, group = chance.choice((1, 2, 3)), chance.choice((1, 2, 3, 7))
    dims = chance.choice((6, 16, 20, 64))
    window = chance.choice((None, None, 1, 5, 64, 100))
    block_size = chance.choice((1, 4, 16, 24, 32, 128))
    spec = make_spec(kv_heads * group, kv_heads, dims, block_size, window, soft_cap)
    rotary = chance.choice((dims, dims, dims // 2 // 2 * 2))
    lengths = [chance.choice((1, 2, 63, 64, 65, 130, 200)) for _ in range(chance.randint(1, 4))]
    return spec, [make_prompt(spec, n, rotary, chance.getrandbits(30)) for n in lengths]
