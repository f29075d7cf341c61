"""Small layers of every scheme with random weights, and what they stand for in float64."""

import dataclasses
from typing import Final, NamedTuple

import torch

from enginebay.hookspecs.kernel import QuantizedRows
from enginebay.hookspecs.quant import PackedLinear

GROUPED: Final = ("int8", "int4", "w8a8-groups", "w4a8")
SPREAD: Final = {"w8a8": 73.3, "int8": 73.9, "int4": 4.61, "w8a8-groups": 73.9, "w4a8": 4.61}
NIBBLES: Final = ("int4", "w4a8")
INTEGER: Final = ("w8a8", "w8a8-groups", "w4a8")
"""Schemes whose rows are int8, in the groups of the weight."""
"""Standard deviation of the codes: scales divide by it, so that weights have unit variance."""


class Sample(NamedTuple):
    """A layer and its meaning."""

    packed: PackedLinear
    """As a quantizer returns it; a kernel's ``pack`` comes after."""
    weight: torch.Tensor
    """float64 [N, K]"""


def sample(
    scheme: str,
    columns: int,
    outputs: int,
    *,
    group: int = 0,
    offsets: bool = False,
    bias: bool = True,
    seed: int = 0,
) -> Sample:
    """A layer of ``outputs`` x ``columns`` with random codes and scales.

    :param group: columns that share a scale; 0: whole rows
    :param offsets: whether codes have some; those of 4 bits always do
    """
    chance = torch.Generator().manual_seed(seed)
    added = torch.randn(outputs, generator=chance) if bias else None
    packed = PackedLinear(
        name="sample", scheme=scheme, in_features=columns, out_features=outputs, bias=added
    )
    if scheme == "float":
        weight = torch.randn(outputs, columns, generator=chance)
        return Sample(dataclasses.replace(packed, tensors={"weight": weight}), weight.double())
    low, high = (0, 16) if scheme in NIBBLES else (-127 - (scheme != "w8a8"), 128)
    codes = torch.randint(low, high, (outputs, columns), generator=chance)
    groups = columns // group if group else 1
    steps = (0.5 + torch.rand(outputs, groups, generator=chance)) / SPREAD[scheme]
    tensors = {
        "weight": codes.to(torch.uint8 if scheme in NIBBLES else torch.int8),
        "scales": steps.flatten() if scheme == "w8a8" else steps,
    }
    starts = torch.zeros(outputs, groups)
    if offsets or scheme in NIBBLES:
        middle = 7.5 if scheme in NIBBLES else 0.0
        starts = (torch.rand(outputs, groups, generator=chance) - 0.5 - middle) * steps
        tensors["offsets"] = starts
    spread = codes.double().view(outputs, groups, -1) * steps.double().unsqueeze(-1)
    packed = dataclasses.replace(
        packed,
        tensors=tensors,
        group_size=group,
        inputs="int8" if scheme in INTEGER else "float",
        input_group=group if scheme in INTEGER else 0,
    )
    return Sample(packed, (spread + starts.double().unsqueeze(-1)).view(outputs, columns))


def with_codes(given: Sample, codes: torch.Tensor) -> Sample:
    """The same layer of scheme w8a8 with other codes int8 [N, K], scales of 1 and no bias."""
    tensors = {"weight": codes, "scales": torch.ones(len(codes))}
    packed = dataclasses.replace(given.packed, tensors=tensors, bias=None)
    return Sample(packed, codes.double())


def sample_rows(packed: PackedLinear, rows: int, seed: int = 0) -> torch.Tensor:
    """Rows for a layer as float32 [T, K], of unit variance; for a layer whose inputs are
    int8 [T, K + G]: whole numbers, then each row's scales. See ``as_inputs``."""
    chance = torch.Generator().manual_seed(seed)
    if packed.inputs == "float":
        return torch.randn(rows, packed.in_features, generator=chance)
    values = torch.randint(-127, 128, (rows, packed.in_features), generator=chance)
    groups = packed.in_features // packed.input_group if packed.input_group else 1
    scales = (0.5 + torch.rand(rows, groups, generator=chance)) / SPREAD["w8a8"]
    return torch.cat((values.float(), scales), dim=1)


def as_inputs(packed: PackedLinear, rows: torch.Tensor) -> torch.Tensor | QuantizedRows:
    """Rows in the form that a layer takes."""
    if packed.inputs == "float":
        return rows
    values, scales = rows[:, : packed.in_features], rows[:, packed.in_features :]
    return QuantizedRows(values.to(torch.int8).contiguous(), scales.contiguous())


def exact_rows(packed: PackedLinear, rows: torch.Tensor) -> torch.Tensor:
    """What rows stand for: float64 [T, K]."""
    wide = rows.double()
    if packed.inputs == "float":
        return wide
    values, scales = wide[:, : packed.in_features], wide[:, packed.in_features :]
    return (in_groups(values, scales.shape[1]) * scales.unsqueeze(2)).flatten(1)


def in_groups(values: torch.Tensor, groups: int) -> torch.Tensor:
    """[T, K] as [T, groups, K / groups]; T may be 0."""
    return values.reshape(values.shape[0], groups, values.shape[1] // groups)
