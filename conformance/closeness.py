"""Whether a kernel's numbers are right within a tolerance, or the same to the bit."""

import torch

from .check import require


def close(
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


def same(clause: str, what: str, found: torch.Tensor, right: torch.Tensor) -> None:
    """:raises Broken: any bit differs"""
    different = (found.view(torch.int32) != right.view(torch.int32)).flatten()
    count = int(different.sum())
    require(
        count == 0,
        clause,
        f"{what}: {count} of {different.numel()} values have other bits, the first at flat "
        f"index {int(different.to(torch.uint8).argmax())}",
    )
