"""What the ops on single rows must do, each held against its definition in float64.

``embedding``, ``rms_norm``, ``silu_and_mul``, and the three that quantize: their values
are what rounding half to even gives, but where the exact value is so near a half that
float32 may go either way.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F

from enginebay.hookspecs.kernel import Kernels, OpSignature, QuantizedRows

from .check import CheckList, require
from .closeness import close, same
from .kernel_offers import offered, usable
from .op_bounds import bound

ROW_OP_CHECKS: Final = CheckList()
"""The subject is a kernel plugin as its hook returned it."""

SIZES: Final = (1, 5, 16, 63, 64, 100, 576, 1000)
EPS: Final = 1e-5
STATIC: Final = (None, 0.037, 0.5)
"""Scales that quantizing ops are tried with; ``None``: each row its own."""

RowOp = Callable[[torch.Tensor], torch.Tensor]
Norm = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
Quantize = Callable[[torch.Tensor, torch.Tensor | None, int], QuantizedRows]
NormQuantize = Callable[
    [torch.Tensor, torch.Tensor, float, torch.Tensor | None, int], QuantizedRows
]


class Rowwise(NamedTuple):
    """An op that gives a row for a row."""

    name: str
    call: RowOp
    rows: torch.Tensor
    """float32 [33, N], what it works on; the last column matters to the whole row"""
    row_invariant: bool
    """As it declares."""


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``rms_norm`` in float64."""
    mean = x.double().square().mean(-1, keepdim=True)
    return x.double() * torch.rsqrt(mean + EPS) * weight.double()


def gated(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu_and_mul`` in float64."""
    gate, up = gate_up.double().chunk(2, dim=1)
    return F.silu(gate) * up


def check_rms_norm(call: Norm) -> None:
    """x / sqrt(mean(x^2) + eps) * weight, for every width, and for small and large x."""
    for size in SIZES:
        for scale in (1.0, 1e-4, 1e4):
            x, weight = randn(7, size, seed=size) * scale, randn(size, seed=1)
            right, told = normed(x, weight), f"N = {size}"
            close("kernel/rms_norm", call(x, weight, EPS), right, bound("elementwise"), told)


def check_silu_and_mul(call: RowOp) -> None:
    """silu(first half) * second half, far out on both sides too."""
    for size in SIZES:
        x, told = far_out(size), f"I = {size}"
        close("kernel/silu_and_mul", call(x), gated(x), bound("elementwise"), told)


def check_quantize(call: Quantize) -> None:
    """Rows of every magnitude, rows of zeros, and exact halves."""
    for size in SIZES:
        x = randn(9, size, seed=size) * torch.logspace(-30, 30, 9).unsqueeze(1)
        x[4] = 0.0
        told = f"K = {size}"
        hold_quantized("kernel/quantize", call(x, None, 0), x.double(), None, told)
        near = randn(9, size, seed=size) * 4
        for scale in STATIC[1:]:
            static = torch.tensor([scale])
            stepped = call(near, static, 0)
            hold_quantized("kernel/quantize", stepped, near.double(), static, told)
    halves = torch.arange(-126.5, 127).repeat(2, 1)
    halves[0, 0] = 127.0  # so that this row's own scale is 1
    for row, given in ((0, None), (1, torch.ones(1))):
        found = call(halves[row : row + 1].clone(), given, 0).values[0]
        same(
            "kernel/quantize",
            f"halves with scale {'of its own' if given is None else 'given'}",
            found,
            torch.round(halves[row].double()).to(torch.int8),
        )


def check_rms_norm_quantize(call: NormQuantize) -> None:
    """As ``rms_norm``, then ``quantize``; a row of zeros stays one."""
    for size in SIZES:
        x, weight = randn(7, size, seed=size), randn(size, seed=1)
        x[1:4] *= torch.tensor([[1e-4], [0.0], [1e4]])
        for scale in STATIC:
            static = None if scale is None else torch.tensor([scale])
            found, told = call(x, weight, EPS, static, 0), f"N = {size}, scale {scale}"
            hold_quantized("kernel/rms_norm_quantize", found, normed(x, weight), static, told, 1)


def check_silu_and_mul_quantize(call: Quantize) -> None:
    """As ``silu_and_mul``, then ``quantize``; a row of zeros stays one."""
    for size in SIZES:
        x = far_out(size).clamp(min=-20)  # a row below 1e-30 may count as zeros
        x[2], x[3] = 0.0, x[3] * 1e-3
        for scale in STATIC:
            static = None if scale is None else torch.tensor([scale])
            found, told = call(x, static, 0), f"I = {size}, scale {scale}"
            hold_quantized("kernel/silu_and_mul_quantize", found, gated(x), static, told, 1)


def hold_quantized(
    clause: str,
    found: QuantizedRows,
    x: torch.Tensor,
    static: torch.Tensor | None,
    where: str,
    behind: int = 0,
    group: int = 0,
) -> None:
    """Hold quantized rows against what they stand for.

    :param x: float64 [T, K], exact and finite
    :param static: float32 [1], the scale of every row; ``None``: each its own
    :param behind: 1 when ``x`` came out of another float32 op before
    :param group: columns that share a scale; 0: a whole row
    """
    values, scales = found.values, found.scales
    grouped = x.view(len(x), -1, group) if group else x.unsqueeze(1)
    kinds = (values.dtype, values.shape, scales.dtype, scales.shape)
    wanted = (torch.int8, x.shape, torch.float32, grouped.shape[:2])
    require(kinds == wanted, clause, f"{where}: {kinds} instead of {wanted}")
    whole = values.is_contiguous() and scales.is_contiguous()
    require(whole, clause, f"{where}: values or scales are not contiguous")
    greatest = grouped.abs().amax(dim=2) if x.shape[1] else x.new_zeros(grouped.shape[:2])
    own = torch.where(greatest == 0, 1.0, greatest / 127)
    right = own if static is None else static.double().expand(grouped.shape[:2])
    near = bound("fused_scale" if behind else "scale") if static is None else 0.0
    close(clause, scales, right, near, f"{where}, scales", right)
    exact = (grouped / right.unsqueeze(2)).clamp(-127, 127).view(x.shape)
    error = (values.double() - exact).abs()
    worst = int(error.argmax()) if error.numel() else 0
    require(
        not error.numel() or error.max() <= 0.5 + bound("fused_tie" if behind else "tie"),
        clause,
        f"{where}: {values.flatten()[worst : worst + 1].tolist()} for "
        f"{exact.flatten()[worst : worst + 1].tolist()} at flat index {worst}",
    )


def row_ops(kernels: Kernels) -> Iterator[Rowwise]:
    """Every row op that is offered, with rows for it."""
    weight = randn(100, seed=1)
    given: dict[str, tuple[torch.Tensor | float, ...]] = {
        "rms_norm": (weight, EPS),
        "silu_and_mul": (),
        "quantize": (),
        "rms_norm_quantize": (weight, EPS),
        "silu_and_mul_quantize": (),
    }
    for op, rest in given.items():
        quantizes = op.endswith("quantize")
        rows = randn(33, 200 if op.startswith("silu") else 100, seed=4)
        for offer in usable(kernels, OpSignature(op=op, scheme="int8" if quantizes else "")):
            for scale in (None, torch.tensor([0.037])) if quantizes else ((),):
                more = (*rest, scale, 0) if quantizes else rest
                yield Rowwise(op, partial(_bits, offer.call, more), rows, offer.row_invariant)


def _bits(call: Callable[..., Any], rest: tuple[Any, ...], x: torch.Tensor) -> torch.Tensor:
    """What an op gives, as float32; of quantized rows the values, then the scale."""
    found = call(x, *rest)
    if isinstance(found, QuantizedRows):
        return torch.cat((found.values.float(), found.scales), dim=1)
    return found  # type: ignore[no-any-return]


@ROW_OP_CHECKS.add("kernel/embedding")
def embedding_is_right(kernels: Kernels) -> None:
    """``embedding`` copies rows, bit for bit; the same id twice gives the same row twice."""
    weight, ids = randn(11, 20, seed=1), torch.tensor([10, 0, 3, 3])
    for call in offered(kernels, "embedding"):
        same("kernel/embedding", "rows of the table", call(ids, weight), weight[ids])


@ROW_OP_CHECKS.add("kernel/rms_norm")
def rms_norm_is_right(kernels: Kernels) -> None:
    """``rms_norm`` is the definition within float32, at every width."""
    for call in offered(kernels, "rms_norm"):
        check_rms_norm(call)


@ROW_OP_CHECKS.add("kernel/silu_and_mul")
def silu_and_mul_is_right(kernels: Kernels) -> None:
    """``silu_and_mul`` is the definition within float32, at every width."""
    for call in offered(kernels, "silu_and_mul"):
        check_silu_and_mul(call)


@ROW_OP_CHECKS.add("kernel/quantize")
def quantize_is_right(kernels: Kernels) -> None:
    """``quantize`` rounds half to even in steps of greatest / 127, or of a given scale."""
    for call in offered(kernels, "quantize"):
        check_quantize(call)


@ROW_OP_CHECKS.add("kernel/rms_norm_quantize")
def rms_norm_quantize_is_right(kernels: Kernels) -> None:
    """``rms_norm_quantize`` is its two parts, within float32 before the rounding."""
    for call in offered(kernels, "rms_norm_quantize"):
        check_rms_norm_quantize(call)


@ROW_OP_CHECKS.add("kernel/silu_and_mul_quantize")
def silu_and_mul_quantize_is_right(kernels: Kernels) -> None:
    """``silu_and_mul_quantize`` is its two parts, within float32 before the rounding."""
    for call in offered(kernels, "silu_and_mul_quantize"):
        check_silu_and_mul_quantize(call)


def far_out(size: int) -> torch.Tensor:
    """[7, 2 size]: gates and their partners, the first row from -100 to 100."""
    x = randn(7, 2 * size, seed=size) * 4
    x[0, :size] = torch.linspace(-100, 100, size)
    return x


def randn(*shape: int, seed: int) -> torch.Tensor:
    """Values of unit variance, the same for the same seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
