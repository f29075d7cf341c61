"""Whether a kernel's numbers are right within a tolerance, or the same to the bit."""

from collections.abc import Callable

import torch

from .check import require

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes of an element."""


def close(
    clause: str,
    found: torch.Tensor,
    right: torch.Tensor,
    tolerance: float,
    where: str,
    magnitude: torch.Tensor | None = None,
) -> None:
    """:param magnitude: what the tolerance is relative to; ``None``: ``right``, or 1 below 1

    :raises Broken: another shape or type, or an error above the tolerance
    """
    kind = (found.dtype, found.shape)
    require(
        kind == (torch.float32, right.shape),
        clause,
        f"{where}: {kind[0]} {list(kind[1])} instead of torch.float32 {list(right.shape)}",
    )
    if not found.numel():
        return
    scale = right.abs().clamp(min=1.0) if magnitude is None else magnitude.clamp(min=1e-30)
    error = ((found.double() - right).abs() / scale).flatten().nan_to_num(float("inf"))
    worst = int(error.argmax())
    require(
        error[worst] <= tolerance,
        clause,
        f"{where}: {found.flatten()[worst]:.8g} instead of {right.flatten()[worst]:.8g} at flat "
        f"index {worst}; the tolerance is {tolerance:.1e}",
    )


def same(clause: str, what: str, found: torch.Tensor, right: torch.Tensor) -> None:
    """:raises Broken: another shape or type, or any bit differs"""
    require(
        (found.dtype, found.shape) == (right.dtype, right.shape),
        clause,
        f"{what}: {found.dtype} {list(found.shape)} for {right.dtype} {list(right.shape)}",
    )
    kind = BITS[found.element_size()]
    different = (found.contiguous().view(kind) != right.contiguous().view(kind)).flatten()
    count = int(different.sum())
    require(
        count == 0,
        clause,
        f"{what}: {count} of {different.numel()} values have other bits, the first at flat "
        f"index {int(different.to(torch.uint8).argmax()) if count else 0}",
    )


def check_row_invariance(
    call: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor, name: str = "op"
) -> None:
    """A row has the same bits alone, among others, in any order and in any split.

    :param rows: [R, N], or indices [R] of rows that ``call`` has; R at least 2
    """
    clause, whole = "kernel/row_invariant", call(rows)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(len(rows)))
    same(clause, f"{name} in another order", call(rows[order]), whole[order])
    for size in (1, 2, 7, 16):
        parts = [call(part) for part in torch.split(rows, size)]
        same(clause, f"{name} in parts of {size} rows", torch.cat(parts), whole)
