"""Codes laid out in panels of columns, as the tiles of ``cpu_codes_tile`` and of
``cpu_w4a8_tile`` stream them."""

import dataclasses

import torch
import torch.nn.functional as F

from enginebay.hookspecs.quant import PackedLinear

from .cpu_block import Block
from .cpu_codes_tile import COLUMNS
from .cpu_lanes import WIDTH
from .cpu_panels import filled, lanes
from .cpu_products import COLUMNS as QUAD_COLUMNS
from .cpu_w4a8_tile import STEP

# argument block of a product, 64-bit words: what is the layer's own, and what a call sets
CODES, PANEL_BYTES, SIZE, GROUPS, OUTER, PANELS, SCALES, OFFSETS, BIAS = range(9)
ROWS, X, X_STEP, OUT, OUT_STEP, ADDS, SHARE, SCRATCH, SCRATCH_STEP, ROW_SCALES = range(9, 19)
NUM_WORDS = 19


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodePanels(PackedLinear):
    """A layer whose codes are laid out in panels, with its argument block."""

    block: Block = dataclasses.field(default_factory=lambda: Block(NUM_WORDS))


def pack_bytes(packed: PackedLinear) -> PackedLinear:
    """int8 [N, K] -> [N / 64, K, 64], scales [N, G] -> [N / 64, G, 64]; zeros fill up."""
    codes = filled(packed.tensors["weight"], COLUMNS).view(-1, COLUMNS, packed.in_features)
    tensors = {
        "weight": codes.transpose(1, 2).contiguous(),
        "scales": lanes(packed.tensors["scales"].float(), COLUMNS),
    }
    return _panels(packed, tensors)


def pack_nibbles(packed: PackedLinear) -> PackedLinear:
    """uint8 [N, K] of 0 .. 15 -> uint8 [N / 64, G * words of a group, 64].

    64 bytes are 16 little-endian words of eight codes; ``scales`` are divided by 16^v for
    vector v: see ``nibble_tile``.
    """
    groups = packed.tensors["scales"].shape[1]
    codes = filled(packed.tensors["weight"], COLUMNS).view(-1, groups, packed.in_features // groups)
    if codes.shape[2] % 2:
        codes = F.pad(codes, (0, 1))
    # panel, high or low byte, high or low half, lane, group, word, column of a pair
    split = codes.view(-1, 2, 2, WIDTH, groups, codes.shape[2] // 2, 2)
    both = split[:, :, 0] | (split[:, :, 1] << 4)
    weight = both.permute(0, 3, 4, 2, 5, 1).reshape(both.shape[0], -1, COLUMNS)
    divisors = torch.tensor([1.0, 16.0, 256.0, 4096.0]).repeat_interleave(WIDTH)
    scales = lanes(packed.tensors["scales"].float(), COLUMNS)
    tensors = {
        "weight": weight.contiguous(),
        "scales": scales / divisors.to(scales.device),
        "offsets": lanes(packed.tensors["offsets"].float(), COLUMNS),
    }
    return _panels(packed, tensors)


def pack_quads(packed: PackedLinear) -> PackedLinear:
    """uint8 [N, K] of 0 .. 15 -> uint8 [N / C, K / 8, vectors, 16 lanes, 4] for the C columns
    of a panel, eight codes of a lane in four bytes: see ``w4a8_tile``."""
    steps = packed.in_features // STEP
    codes = filled(packed.tensors["weight"], QUAD_COLUMNS)
    split = codes.view(-1, QUAD_COLUMNS // WIDTH, WIDTH, steps, 2, 4)
    both = split[:, :, :, :, 0] | (split[:, :, :, :, 1] << 4)
    weight = both.permute(0, 3, 1, 2, 4).contiguous()
    tensors = {
        name: lanes(packed.tensors[name].float(), QUAD_COLUMNS) for name in ("scales", "offsets")
    }
    return _panels(packed, {"weight": weight, **tensors}, QUAD_COLUMNS)


def _panels(
    packed: PackedLinear, tensors: dict[str, torch.Tensor], columns: int = COLUMNS
) -> CodePanels:
    bias = None if packed.bias is None else filled(packed.bias.float(), columns)
    fields = {each.name: getattr(packed, each.name) for each in dataclasses.fields(packed)}
    layer = CodePanels(**{**fields, "tensors": tensors, "bias": bias})
    weight, scales = tensors["weight"], tensors["scales"]
    if weight.device.type == "meta":
        return layer
    groups = scales.shape[1]
    layer.block.words[: BIAS + 1] = (
        weight.data_ptr(),
        weight[0].nbytes,
        packed.in_features // groups,
        groups,
        packed.out_features,
        weight.shape[0],
        scales.data_ptr(),
        tensors["offsets"].data_ptr() if "offsets" in tensors else 0,
        0 if bias is None else bias.data_ptr(),
    )
    return layer
