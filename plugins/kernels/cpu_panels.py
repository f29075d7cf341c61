"""Weights laid out in panels, as the tiles of ``cpu_products`` stream them."""

import dataclasses

import torch

from enginebay.hookspecs.quant import PackedLinear

from .cpu_block import Block
from .cpu_products import COLUMNS, GROUP, ROW_BYTES, VNNI

# argument block of a product: what is the layer's own, and what a call sets
WEIGHTS, STEPS, INNER, OUTER, PANELS, SCALES, BIAS, START = range(8)
ROWS, X, X_STEP, ROW_SCALES, OUT, OUT_STEP, ADDS, SHARE = range(8, 16)
SCRATCH, SCRATCH_STEP, GROUPS = 16, 17, 18
NUM_WORDS = 19


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panels(PackedLinear):
    """A layer whose ``weight`` is laid out in panels, with its argument block."""

    block: Block = dataclasses.field(default_factory=lambda: Block(NUM_WORDS))
    row_bytes: int = 0
    """Of one prepared row of int8."""


def pack_float(packed: PackedLinear) -> PackedLinear:
    """float32 [N, K] -> panels [N / COLUMNS, K, COLUMNS], filled up with zeros."""
    weight = packed.tensors["weight"]
    columns = weight.shape[1]
    padded = _padded(weight, columns)
    panels = padded.view(-1, COLUMNS, columns).transpose(1, 2).contiguous()
    return _panels(packed, {"weight": panels}, columns)


def pack_int(packed: PackedLinear) -> PackedLinear:
    """int8 [N, K] -> panels [N / COLUMNS, K / GROUP, COLUMNS, GROUP], filled up with zeros;
    with VNNI also ``start``, what the shift of the rows by 128 has to be made up with."""
    padded = _padded_codes(packed)
    tensors = {
        "weight": _int_panels(padded),
        "scales": filled(packed.tensors["scales"].float(), COLUMNS),
    }
    if VNNI:
        tensors["start"] = (padded.to(torch.int32).sum(dim=1) * -128).to(torch.int32)
    return _panels(packed, tensors, padded.shape[1] // GROUP)


def pack_int_groups(packed: PackedLinear) -> PackedLinear:
    """As ``pack_int``, with ``scales`` and ``start`` as panels [N / COLUMNS, G, COLUMNS]."""
    padded, scales = _padded_codes(packed), packed.tensors["scales"]
    groups = scales.shape[1]
    tensors = {"weight": _int_panels(padded), "scales": lanes(scales.float(), COLUMNS)}
    if VNNI:
        codes = padded.view(len(padded), groups, packed.in_features // groups)
        tensors["start"] = lanes(codes.sum(dim=2, dtype=torch.int32) * -128, COLUMNS)
    return _panels(packed, tensors, padded.shape[1] // GROUP, groups)


def _padded_codes(packed: PackedLinear) -> torch.Tensor:
    return _padded(packed.tensors["weight"], -(-packed.in_features // GROUP) * GROUP)


def _int_panels(padded: torch.Tensor) -> torch.Tensor:
    split = padded.view(-1, COLUMNS, padded.shape[1] // GROUP, GROUP)
    return split.transpose(1, 2).contiguous()


def lanes(values: torch.Tensor, columns: int) -> torch.Tensor:
    """[N, G] -> [N / columns, G, columns], filled up with zeros."""
    panels = filled(values, columns).view(-1, columns, values.shape[1])
    return panels.transpose(1, 2).contiguous()


def _padded(weight: torch.Tensor, columns: int) -> torch.Tensor:
    """Rows up to a whole panel, columns up to a whole group."""
    rows = -(-weight.shape[0] // COLUMNS) * COLUMNS
    if (rows, columns) == weight.shape:
        return weight
    return torch.nn.functional.pad(
        weight, (0, columns - weight.shape[1], 0, rows - weight.shape[0])
    )


def filled(values: torch.Tensor, columns: int) -> torch.Tensor:
    """[N, ...] with zeros up to a whole panel of ``columns``."""
    missing = -values.shape[0] % columns
    if not missing:
        return values.contiguous()
    return torch.cat([values, values.new_zeros((missing, *values.shape[1:]))])


def _panels(
    packed: PackedLinear, tensors: dict[str, torch.Tensor], steps: int, groups: int = 1
) -> Panels:
    bias = None if packed.bias is None else filled(packed.bias.float(), COLUMNS)
    fields = {each.name: getattr(packed, each.name) for each in dataclasses.fields(packed)}
    row_bytes = steps * GROUP * ROW_BYTES
    layer = Panels(**{**fields, "tensors": tensors, "bias": bias}, row_bytes=row_bytes)
    weight = tensors["weight"]
    if weight.device.type == "meta":
        return layer
    layer.block.words[: START + 1] = (
        weight.data_ptr(),
        steps,
        packed.in_features,
        packed.out_features,
        weight.shape[0],
        tensors["scales"].data_ptr() if "scales" in tensors else 0,
        0 if bias is None else bias.data_ptr(),
        tensors["start"].data_ptr() if "start" in tensors else 0,
    )
    layer.block.words[GROUPS] = groups
    return layer
