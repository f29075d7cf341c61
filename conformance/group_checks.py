"""What the ops that quantize must do where scales belong to groups of columns."""

from typing import Final

import torch

from enginebay.hookspecs.kernel import FUSED, Kernels, OpSignature

from .check import CheckList, Skip
from .kernel_offers import usable
from .row_op_checks import EPS, gated, hold_quantized, normed, randn

GROUP_CHECKS: Final = CheckList()
"""The subject is a kernel plugin as its hook returned it."""

CLAUSE: Final = "kernel/quantize_groups"
SIZES: Final = ((96, 32), (64, 64), (15, 5), (576, 64))
"""Columns, and columns that share a scale."""


@GROUP_CHECKS.add(CLAUSE)
def groups_have_scales_of_their_own(kernels: Kernels) -> None:
    """The ops that quantize give each group of columns its scale, where they take groups."""
    offers = [check_groups(kernels, op) for op in ("quantize", *FUSED)]
    if not sum(offers):
        msg = "no float32 kernel quantizes in groups"
        raise Skip(msg)


def check_groups(kernels: Kernels, op: str) -> int:
    """A group of zeros and one far larger than the others, for every offer.

    :return: how many there are
    """
    tried = 0
    for size, group in SIZES:
        sizes = (("size", size), ("group", group))
        for offer in usable(kernels, OpSignature(op=op, scheme="int8", sizes=sizes)):
            x, weight = randn(5, size, seed=size), randn(size, seed=1)
            x[1, :group], x[2, -group:] = 0.0, 30 * x[2, -group:]
            told, behind = f"{op} of K = {size} in groups of {group}", 1
            if op == "quantize":
                found, right, behind = offer.call(x, None, group), x.double(), 0
            elif op == "rms_norm_quantize":
                found, right = offer.call(x, weight, EPS, None, group), normed(x, weight)
            else:
                wide = torch.cat((x, weight.expand(5, -1)), dim=1)
                found, right = offer.call(wide, None, group), gated(wide)
            hold_quantized(CLAUSE, found, right, None, told, behind, group)
            tried += 1
    return tried
