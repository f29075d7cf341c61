"""What an attention kernel must do, as plain functions over the callable that it offers.

It is held against float64 torch, and must give a row the same bits wherever it stands
when it is declared row-invariant.
"""

import random
from typing import Final

from enginebay.hookspecs.kernel import Kernels, KVSpec

from .attention_world import (
    AttentionWorld,
    MakeAttention,
    Prompt,
    expected,
    in_chunks,
    make_prompt,
    make_spec,
)
from .check import CheckList
from .closeness import close, same
from .kernel_offers import offered

ATTENTION_CHECKS: Final = CheckList()
"""The subject is a kernel plugin as its hook returned it."""

ATTENTION: Final = 1e-5
"""Greatest absolute error of attention over values of unit variance. One position too
many or too few in a context of 200 is an error of about 5e-3."""
INVARIANT: Final = "kernel/attention_invariant"


def check_attention(make: MakeAttention, *, seed: int = 0, num_cases: int = 8) -> None:
    """Softmax over exactly the positions a row may see, for mixed steps of all shapes."""
    chance = random.Random(seed)
    for number in range(num_cases):
        spec, prompts = _random_case(chance)
        steps = in_chunks(prompts, chance.choice((1, 7, 64, 1000)), together=True)
        outputs = AttentionWorld(make, spec, prompts).run(steps)
        for prompt, output in zip(prompts, outputs, strict=True):
            where = f"case {number}: {len(prompt)} positions of {spec}"
            close("kernel/attention", output, expected(spec, prompt), ATTENTION, where)


def check_attention_invariance(make: MakeAttention, *, sliding_window: int | None = None) -> None:
    """A row's bits do not depend on chunks, block size, neighbours or their order."""
    plain = make_spec(num_heads=6, num_kv_heads=2, head_dim=24, sliding_window=sliding_window)
    prompts = [make_prompt(plain, length, 16, length) for length in (150, 1, 64, 33)]
    first = AttentionWorld(make, plain, prompts[:1]).run(in_chunks(prompts[:1], 1000))[0]
    for block_size in (4, 16, 32, 24, 128):
        spec = make_spec(6, 2, 24, block_size, sliding_window)
        for size in (1, 7, 64, 1000):
            told = f"attention in chunks of {size}, blocks of {block_size}"
            steps = in_chunks(prompts, size, together=True)
            same(INVARIANT, told, AttentionWorld(make, spec, prompts).run(steps)[0], first)
    others = [*prompts[1:], *(make_prompt(plain, 40, 16, seed) for seed in range(28))]
    crowd = [*others, prompts[0]]
    steps = in_chunks(crowd, 50, together=True)
    same(
        INVARIANT,
        "attention among 31 others",
        AttentionWorld(make, plain, crowd).run(steps)[-1],
        first,
    )


@ATTENTION_CHECKS.add("kernel/attention")
def attention_is_right(kernels: Kernels) -> None:
    """``attention`` sees exactly what each row may see, and mixes it within float32."""
    for call in offered(kernels, "attention"):
        check_attention(call)


@ATTENTION_CHECKS.add(INVARIANT)
def attention_is_invariant(kernels: Kernels) -> None:
    """``attention`` declared row-invariant gives a row the same bits wherever it stands."""
    for call in offered(kernels, "attention", invariant=True):
        check_attention_invariance(call)
        check_attention_invariance(call, sliding_window=50)


def _random_case(chance: random.Random) -> tuple[KVSpec, list[Prompt]]:
    kv_heads, group = chance.choice((1, 2, 3)), chance.choice((1, 2, 3, 7))
    dims = chance.choice((6, 16, 20, 64))
    window = chance.choice((None, None, 1, 5, 64, 100))
    spec = make_spec(
        kv_heads * group, kv_heads, dims, chance.choice((1, 4, 16, 24, 32, 128)), window
    )
    rotary = chance.choice((dims, dims, dims // 2 // 2 * 2))
    lengths = [chance.choice((1, 2, 63, 64, 65, 130, 200)) for _ in range(chance.randint(1, 4))]
    return spec, [make_prompt(spec, n, rotary, chance.getrandbits(30)) for n in lengths]
