"""What every kernel must do, as plain functions over the callables that it offers.

Each op is held against float64 torch, at tolerances for float32 kernels on rows of unit
variance; an op that is declared row-invariant must give a row the same bits wherever it
stands. ``KERNEL_CHECKS`` runs all of it on a built kernel plugin.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F

from enginebay.hookspecs.kernel import Kernels
from enginebay.hookspecs.quant import PackedLinear

from .attention_checks import ATTENTION_CHECKS
from .check import CheckList, require
from .closeness import close, same
from .kernel_offers import offered

KERNEL_CHECKS: Final = CheckList(ATTENTION_CHECKS)
"""The subject is a kernel plugin as its hook returned it."""

SIZES: Final = (1, 5, 16, 63, 64, 100, 576, 1000)
ROWS: Final = (1, 2, 7, 33)
ELEMENTWISE: Final = 2e-6
"""Greatest error of ``rms_norm`` and ``silu_and_mul``, relative above 1: 16 ulp."""
PRODUCT: Final = 4e-6
"""Error of a product per square root of its length."""

RowOp = Callable[[torch.Tensor], torch.Tensor]
Linear = Callable[[torch.Tensor, PackedLinear], torch.Tensor]


def check_rms_norm(call: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]) -> None:
    """x / sqrt(mean(x^2) + eps) * weight, for every width, and for small and large x."""
    for size in SIZES:
        for scale in (1.0, 1e-4, 1e4):
            x, weight = _randn(7, size, seed=size) * scale, _randn(size, seed=1)
            mean = x.double().square().mean(-1, keepdim=True)
            right = x.double() * torch.rsqrt(mean + 1e-5) * weight.double()
            close("kernel/rms_norm", call(x, weight, 1e-5), right, ELEMENTWISE, f"N = {size}")


def check_silu_and_mul(call: RowOp) -> None:
    """silu(first half) * second half, far out on both sides too."""
    for size in SIZES:
        x = _randn(7, 2 * size, seed=size) * 4
        x[0, :size] = torch.linspace(-100, 100, size)
        gate, up = x.double().chunk(2, dim=1)
        close("kernel/silu_and_mul", call(x), F.silu(gate) * up, ELEMENTWISE, f"I = {size}")


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
                close(clause, call(x, packed), right, PRODUCT * columns**0.5, where)


def check_embedding(call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    """The rows of the table, bit for bit; the same id twice gives the same row twice."""
    weight, ids = _randn(11, 20, seed=1), torch.tensor([10, 0, 3, 3])
    same = torch.equal(call(ids, weight), weight[ids])
    require(same, "kernel/embedding", "embedding rows are not the table's rows")


def check_row_invariance(call: RowOp, rows: torch.Tensor, name: str = "op") -> None:
    """A row has the same bits alone, among others, in any order and in any split.

    :param rows: float32 [R, N], R at least 2
    """
    whole = call(rows)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(len(rows)))
    same("kernel/row_invariant", f"{name} in another order", call(rows[order]), whole[order])
    for size in (1, 2, 7, 16):
        parts = [call(part) for part in torch.split(rows, size)]
        same("kernel/row_invariant", f"{name} in parts of {size} rows", torch.cat(parts), whole)


@KERNEL_CHECKS.add("kernel/rms_norm")
def rms_norm_is_right(kernels: Kernels) -> None:
    """``rms_norm`` is the definition within float32, at every width."""
    for call in offered(kernels, "rms_norm"):
        check_rms_norm(call)


@KERNEL_CHECKS.add("kernel/silu_and_mul")
def silu_and_mul_is_right(kernels: Kernels) -> None:
    """``silu_and_mul`` is the definition within float32, at every width."""
    for call in offered(kernels, "silu_and_mul"):
        check_silu_and_mul(call)


@KERNEL_CHECKS.add("kernel/linear")
def products_are_right(kernels: Kernels) -> None:
    """``linear`` and ``logits`` of plain weights are products within float32."""
    for op in ("linear", "logits"):
        for call in offered(kernels, op):
            check_linear(call)


@KERNEL_CHECKS.add("kernel/embedding")
def embedding_is_right(kernels: Kernels) -> None:
    """``embedding`` copies rows."""
    for call in offered(kernels, "embedding"):
        check_embedding(call)


@KERNEL_CHECKS.add("kernel/row_invariant")
def row_invariance_is_kept(kernels: Kernels) -> None:
    """An op declared row-invariant gives a row the same bits wherever it stands."""
    weight = _randn(100, seed=1)
    packed = PackedLinear("w", "float", 100, 60, {"weight": _randn(60, 100, seed=2)})
    for call in offered(kernels, "rms_norm", invariant=True):
        check_row_invariance(_bound(call, weight, 1e-5), _randn(33, 100, seed=3), "rms_norm")
    for call in offered(kernels, "silu_and_mul", invariant=True):
        check_row_invariance(call, _randn(33, 100, seed=4), "silu_and_mul")
    for op in ("linear", "logits"):
        for call in offered(kernels, op, invariant=True):
            check_row_invariance(_bound(call, packed), _randn(33, 100, seed=5), op)


def _bound(call: Callable[..., torch.Tensor], *rest: Any) -> RowOp:
    return lambda x: call(x, *rest)


def _randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
