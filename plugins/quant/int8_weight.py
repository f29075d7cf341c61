"""int8 weights: half the bits of bfloat16, nearly all its quality.

Symmetric, rounded to nearest: a weight is code * scale, with a scale a row, or one for
each group of columns. Activations stay in float, or are int8 with scales of the same groups.
"""

from typing import Literal

import msgspec
import torch

from enginebay import hookimpl
from enginebay.hookspecs.format import StoredWeight
from enginebay.hookspecs.model import Role
from enginebay.hookspecs.quant import PackedLinear, QuantContext, Quantizer, QuantReport

from .weight_only import CodeTally, checked_group, fitting_group, ignored, row_chunks

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is quantized, and how finely."""

    group_size: int = 0
    """Columns that share a scale: 32, 64 or 128, less where they don't divide a layer's;
    0: a scale a row."""
    activations: Literal["float", "int8"] = "float"
    """What the weights are multiplied with: rows in the compute dtype, or in int8 with a scale
    for each token and group, the groups of the weight."""
    head: Literal["int8", "float"] = "int8"
    """The last layer: int8 as the others, or in the compute dtype."""
    ignore: tuple[str, ...] = ()
    """Layers left in float: names as ``enginebay explain`` has them, with ``*`` and ``?``
    (``model.layers.0.*``, ``*.mlp.down``)."""


class Int8Weight:
    """Packs weights as int8, and takes codes of up to 8 bits that a checkpoint has."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.tally = CodeTally()

    @property
    def activations(self) -> str:
        """``float``, or ``int8 dynamic`` with a scale a token, and a group where there are."""
        if self.options.activations == "float":
            return "float"
        return "int8 dynamic, by group" if self.options.group_size else "int8 dynamic"

    @property
    def scheme(self) -> str:
        """Of the layers that are not left in float."""
        return "int8" if self.options.activations == "float" else "w8a8-groups"

    def pack(
        self, name: str, role: Role, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> PackedLinear:
        """A layer of 8 bits, or ``float`` where it is to be left alone.

        :param weight: [N, K] in the compute dtype; nothing of it is kept but in ``float``
        """
        reason = self._left(name, role)
        if reason:
            return self.tally.float_layer(name, weight, bias, reason)
        columns = weight.shape[1]
        group = fitting_group(columns, self.options.group_size) or columns
        codes, scales = quantized(weight, group)
        tensors = {"weight": codes, "scales": scales}
        return self.tally.code_layer(name, self.scheme, tensors, bias, 8)

    def pack_stored(
        self, name: str, role: Role, stored: StoredWeight, bias: torch.Tensor | None
    ) -> PackedLinear | None:
        """The checkpoint's own codes, in its own groups; ``None`` for codes with offsets.

        Codes made for int8 activations are taken too: they stand for the same weights.
        """
        form = stored.form
        if self._left(name, role) or form.offsets or form.bits > 8:
            return None
        tensors = {"weight": stored.codes.contiguous(), "scales": stored.scales}
        return self.tally.code_layer(name, self.scheme, tensors, bias, 8)

    def report(self) -> QuantReport:
        """What it has packed so far."""
        group = self.options.group_size
        return QuantReport(
            scheme=self.scheme,
            activations=self.activations,
            group_size=group or None,
            scales="group" if group else "channel",
            weight_bytes=self.tally.weight_bytes,
            metadata_bytes=self.tally.metadata_bytes,
            float_layers=self.tally.float_layers,
        )

    def _left(self, name: str, role: Role) -> str:
        """Why a layer stays in float; empty: it doesn't."""
        if role == "head" and self.options.head == "float":
            return "head = 'float'"
        return ignored(name, self.options.ignore)


def quantized(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes int8 [N, K] in -127 .. 127, scales float32 [N, K / group]) of a weight in any
    float dtype; a group of zeros has the scale 1."""
    outer, inner = weight.shape
    codes = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(outer, inner // group, device=weight.device)
    for rows in row_chunks(weight):
        values = weight[rows].float().reshape(-1, inner // group, group)
        greatest = values.abs().amax(dim=2)
        steps = torch.where(greatest == 0, 1.0, greatest / 127.0)
        units = torch.round(values / steps.unsqueeze(2)).clamp_(-127.0, 127.0)
        scales[rows] = steps
        codes[rows] = units.view(-1, inner).to(torch.int8)
    return codes, scales


@hookimpl
def enginebay_quant(options: Options, context: QuantContext) -> Quantizer:
    """Build the scheme."""
    checked_group("int8-weight", options.group_size, (0,))
    return Int8Weight(options)
