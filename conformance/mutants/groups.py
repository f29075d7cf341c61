"""Products of codes and int8 rows in groups with one fault each, of plain torch in float64."""

import dataclasses
from typing import Final

import torch

from enginebay.hookspecs.kernel import QuantizedRows
from enginebay.hookspecs.quant import PackedLinear

from ..sample_layers import in_groups
from .linears import Residual, of, weight_only
from .mutant import Mutant


def right(x: QuantizedRows, packed: PackedLinear, residual: Residual = None) -> torch.Tensor:
    """The right one for codes of groups and int8 rows of the same groups."""
    return weight_only(dequantized(x), packed, residual)


def dequantized(x: QuantizedRows) -> torch.Tensor:
    """float64 [T, K]"""
    values = in_groups(x.values.double(), x.scales.shape[1])
    return (values * x.scales.double().unsqueeze(2)).flatten(1)


def groups_in_16_bits(
    x: QuantizedRows, packed: PackedLinear, residual: Residual = None
) -> torch.Tensor:
    """The sums of a group wrap at 16 bits."""
    scales = packed.tensors["scales"]
    codes = packed.tensors["weight"].long().view(*scales.shape, -1)
    values = in_groups(x.values.long(), x.scales.shape[1])
    sums = torch.einsum("tgk,ngk->tgn", values, codes)
    off = ((sums + 2**15) % 2**16 - 2**15 - sums).double() * x.scales.double().unsqueeze(2)
    out = right(x, packed, residual)
    return out.add_((off * scales.double().T).sum(1).float())


def first_groups_scale(
    x: QuantizedRows, packed: PackedLinear, residual: Residual = None
) -> torch.Tensor:
    scales = x.scales[:, :1].expand(x.scales.shape)
    return right(QuantizedRows(x.values, scales), packed, residual)


def offsets_of_values(
    x: QuantizedRows, packed: PackedLinear, residual: Residual = None
) -> torch.Tensor:
    """Offsets are added once a column, not once for each value of the row."""
    bare = dataclasses.replace(
        packed, tensors={**packed.tensors, "offsets": torch.zeros_like(packed.tensors["scales"])}
    )
    return right(x, bare, residual).add_(packed.tensors["offsets"].sum(1))


def spread_groups(
    x: QuantizedRows, packed: PackedLinear, residual: Residual = None
) -> torch.Tensor:
    out = right(x, packed, residual)
    return out if torch.isfinite(x.scales).all() else out * float("nan")


def narrow_bytes(x: QuantizedRows, packed: PackedLinear, residual: Residual = None) -> torch.Tensor:
    """The code -128 becomes 127."""
    weight = (packed.tensors["weight"].short() + (packed.tensors["weight"] == -128) * 255).to(
        torch.int8
    )
    tensors = {**packed.tensors, "weight": weight}
    return right(x, dataclasses.replace(packed, tensors=tensors), residual)


W4A8: Final = "kernel/linear_w4a8"
W8A8: Final = "kernel/linear_w8a8_groups"
RIGHT_IN_GROUPS: Final = (("w8a8-groups", right), ("w4a8", right))
"""(scheme, callable) without a fault."""
GROUP_MUTANTS: Final[tuple[Mutant, ...]] = (
    of("w8a8-groups", "takes the first group's scale of a row", first_groups_scale, W8A8),
    of("w8a8-groups", "turns the lowest code", narrow_bytes, W8A8),
    of("w4a8", "adds up a group in 16 bits", groups_in_16_bits, W4A8),
    of("w4a8", "takes the first group's scale of a row", first_groups_scale, W4A8),
    of("w4a8", "adds offsets once", offsets_of_values, W4A8),
    of("w4a8", "spreads what is no number", spread_groups, "kernel/neighbours"),
)
