"""What every kernel must do, as plain functions over the callables that it offers.

Each op is held against float64 torch, at tolerances for float32 kernels on rows of unit
variance; an op that is declared row-invariant must give a row the same bits wherever it
stands. ``KERNEL_CHECKS`` runs all of it on a built kernel plugin.
"""

import random
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F

from enginebay.hookspecs.kernel import Kernels, KVSpec, OpSignature
from enginebay.hookspecs.quant import PackedLinear

from .attention_world import (
    AttentionWorld,
    MakeAttention,
    Prompt,
    expected,
    in_chunks,
    make_prompt,
    make_spec,
)
from .check import CheckList, Skip, require

KERNEL_CHECKS: Final = CheckList()
"""The subject is a kernel plugin as its hook returned it."""

SIZES: Final = (1, 5, 16, 63, 64, 100, 576, 1000)
ROWS: Final = (1, 2, 7, 33)
ELEMENTWISE: Final = 2e-6
"""Greatest error of ``rms_norm`` and ``silu_and_mul``, relative above 1: 16 ulp."""
PRODUCT: Final = 4e-6
"""Error of a product per square root of its length."""
ATTENTION: Final = 1e-5
"""Greatest absolute error of attention over values of unit variance. One position too
many or too few in a context of 200 is an error of about 5e-3."""

RowOp = Callable[[torch.Tensor], torch.Tensor]
Linear = Callable[[torch.Tensor, PackedLinear], torch.Tensor]


def check_rms_norm(call: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]) -> None:
    """x / sqrt(mean(x^2) + eps) * weight, for every width, and for small and large x."""
    for size in SIZES:
        for scale in (1.0, 1e-4, 1e4):
            x, weight = _randn(7, size, seed=size) * scale, _randn(size, seed=1)
            mean = x.double().square().mean(-1, keepdim=True)
            right = x.double() * torch.rsqrt(mean + 1e-5) * weight.double()
            _close("kernel/rms_norm", call(x, weight, 1e-5), right, ELEMENTWISE, f"N = {size}")


def check_silu_and_mul(call: RowOp) -> None:
    """silu(first half) * second half, far out on both sides too."""
    for size in SIZES:
        x = _randn(7, 2 * size, seed=size) * 4
        x[0, :size] = torch.linspace(-100, 100, size)
        gate, up = x.double().chunk(2, dim=1)
        _close("kernel/silu_and_mul", call(x), F.silu(gate) * up, ELEMENTWISE, f"I = {size}")


def check_linear(call: Linear, clause: str = "kernel/linear") -> None:
    """x times weight transposed, with and without bias, for any number of rows."""
    for rows in ROWS:
        for columns, outputs in ((1, 3), (64, 64), (576, 100)):
            x, weight = _randn(rows, columns, seed=rows), _randn(outputs, columns, seed=2)
            for bias in (None, _randn(outputs, seed=3)):
                packed = PackedLinear("w", "float", columns, outputs, {"weight": weight}, bias)
                right = x.double() @ weight.double().T
                right = right if bias is None else right + bias.double()
                where = f"[{rows}, {columns}] x [{outputs}, {columns}]"
                _close(clause, call(x, packed), right, PRODUCT * columns**0.5, where)


def check_embedding(call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    """The rows of the table, bit for bit; the same id twice gives the same row twice."""
    weight, ids = _randn(11, 20, seed=1), torch.tensor([10, 0, 3, 3])
    same = torch.equal(call(ids, weight), weight[ids])
    require(same, "kernel/embedding", "embedding rows are not the table's rows")


def check_attention(make: MakeAttention, *, seed: int = 0, num_cases: int = 8) -> None:
    """Softmax over exactly the positions a row may see, for mixed steps of all shapes."""
    chance = random.Random(seed)
    for number in range(num_cases):
        spec, prompts = _random_case(chance)
        steps = in_chunks(prompts, chance.choice((1, 7, 64, 1000)), together=True)
        outputs = AttentionWorld(make, spec, prompts).run(steps)
        for prompt, output in zip(prompts, outputs, strict=True):
            where = f"case {number}: {len(prompt)} positions of {spec}"
            _close("kernel/attention", output, expected(spec, prompt), ATTENTION, where)


def check_row_invariance(call: RowOp, rows: torch.Tensor, name: str = "op") -> None:
    """A row has the same bits alone, among others, in any order and in any split.

    :param rows: float32 [R, N], R at least 2
    """
    whole = call(rows)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(len(rows)))
    _same(f"{name} in another order", call(rows[order]), whole[order])
    for size in (1, 2, 7, 16):
        parts = [call(part) for part in torch.split(rows, size)]
        _same(f"{name} in parts of {size} rows", torch.cat(parts), whole)


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
            _same(told, AttentionWorld(make, spec, prompts).run(steps)[0], first)
    others = [*prompts[1:], *(make_prompt(plain, 40, 16, seed) for seed in range(28))]
    crowd = [*others, prompts[0]]
    steps = in_chunks(crowd, 50, together=True)
    _same("attention among 31 others", AttentionWorld(make, plain, crowd).run(steps)[-1], first)


@KERNEL_CHECKS.add("kernel/rms_norm")
def rms_norm_is_right(kernels: Kernels) -> None:
    """``rms_norm`` is the definition within float32, at every width."""
    for call in _offered(kernels, "rms_norm"):
        check_rms_norm(call)


@KERNEL_CHECKS.add("kernel/silu_and_mul")
def silu_and_mul_is_right(kernels: Kernels) -> None:
    """``silu_and_mul`` is the definition within float32, at every width."""
    for call in _offered(kernels, "silu_and_mul"):
        check_silu_and_mul(call)


@KERNEL_CHECKS.add("kernel/linear")
def products_are_right(kernels: Kernels) -> None:
    """``linear`` and ``logits`` of plain weights are products within float32."""
    for op in ("linear", "logits"):
        for call in _offered(kernels, op):
            check_linear(call)


@KERNEL_CHECKS.add("kernel/embedding")
def embedding_is_right(kernels: Kernels) -> None:
    """``embedding`` copies rows."""
    for call in _offered(kernels, "embedding"):
        check_embedding(call)


@KERNEL_CHECKS.add("kernel/attention")
def attention_is_right(kernels: Kernels) -> None:
    """``attention`` sees exactly what each row may see, and mixes it within float32."""
    for call in _offered(kernels, "attention"):
        check_attention(call)


@KERNEL_CHECKS.add("kernel/row_invariant")
def row_invariance_is_kept(kernels: Kernels) -> None:
    """An op declared row-invariant gives a row the same bits wherever it stands."""
    weight = _randn(100, seed=1)
    packed = PackedLinear("w", "float", 100, 60, {"weight": _randn(60, 100, seed=2)})
    for call in _offered(kernels, "rms_norm", invariant=True):
        check_row_invariance(_bound(call, weight, 1e-5), _randn(33, 100, seed=3), "rms_norm")
    for call in _offered(kernels, "silu_and_mul", invariant=True):
        check_row_invariance(call, _randn(33, 100, seed=4), "silu_and_mul")
    for op in ("linear", "logits"):
        for call in _offered(kernels, op, invariant=True):
            check_row_invariance(_bound(call, packed), _randn(33, 100, seed=5), op)
    for call in _offered(kernels, "attention", invariant=True):
        check_attention_invariance(call)
        check_attention_invariance(call, sliding_window=50)


def _bound(call: Callable[..., torch.Tensor], *rest: Any) -> RowOp:
    return lambda x: call(x, *rest)


def _offered(kernels: Kernels, op: str, *, invariant: bool = False) -> list[Callable[..., Any]]:
    """The float32 callables for an op; only those declared row-invariant if asked.

    :raises Skip: none is offered
    """
    signature = OpSignature(op=op, scheme="float" if op in ("linear", "logits") else "")
    calls = [
        offer.call
        for offer in kernels.offers()
        if offer.op == op
        and offer.supports(signature) is None
        and (offer.row_invariant or not invariant)
    ]
    if not calls and not invariant:
        msg = f"no float32 kernel for {op} is offered"
        raise Skip(msg)
    return calls


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


def _randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _close(
    clause: str, found: torch.Tensor, right: torch.Tensor, tolerance: float, where: str
) -> None:
    """:raises Broken: another shape or type, or an error above the tolerance"""
    kind = (found.dtype, found.shape)
    require(
        kind == (torch.float32, right.shape),
        clause,
        f"{where}: {kind[0]} {list(kind[1])} instead of torch.float32 {list(right.shape)}",
    )
    error = ((found.double() - right).abs() / right.abs().clamp(min=1.0)).flatten()
    worst = int(error.nan_to_num(float("inf")).argmax())
    require(
        error.nan_to_num(float("inf"))[worst] <= tolerance,
        clause,
        f"{where}: {found.flatten()[worst]:.8g} instead of {right.flatten()[worst]:.8g} at flat "
        f"index {worst}; the tolerance is {tolerance:.1e}",
    )


def _same(what: str, found: torch.Tensor, right: torch.Tensor) -> None:
    """:raises Broken: any bit differs"""
    different = (found.view(torch.int32) != right.view(torch.int32)).flatten()
    count = int(different.sum())
    require(
        count == 0,
        "kernel/row_invariant",
        f"{what}: {count} of {different.numel()} values have other bits, the first at flat "
        f"index {int(different.to(torch.uint8).argmax())}",
    )
