"""4-bit weights in groups: the least to read for a token. Activations stay in float, or are
int8 with a scale for each group of a row, so that products are of integers.

Asymmetric: a weight is code * scale + offset, with a scale and an offset for each group of
columns. Groups begin at their least and greatest weight; then offset and scale are set to
the least squared error for the codes, and the codes to the nearest, in turn: each round
can only lessen the error (Lloyd, "Least squares quantization in PCM", 1982).
"""

from typing import Literal

import msgspec
import torch

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.hookspecs.format import StoredWeight
from enginebay.hookspecs.model import Role
from enginebay.hookspecs.quant import PackedLinear, QuantContext, Quantizer, QuantReport

from . import int8_weight
from .int4_groups import quantized
from .weight_only import CodeTally, checked_group, fitting_group, ignored

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is quantized, and how finely."""

    group_size: int = 32
    """Columns that share a scale and an offset: 32, 64 or 128, less where they don't divide
    a layer's."""
    rounds: int = 3
    """Rounds of the search for the least squared error; 0: least and greatest weight."""
    activations: Literal["float", "int8"] = "float"
    """What the 4-bit weights are multiplied with: rows in the compute dtype, or in int8 with
    a scale for each token and group, the groups of the weight."""
    head: Literal["int4", "int8", "float"] = "int8"
    """The last layer: as the others, in int8 with a scale for each group, or in the compute
    dtype. 4-bit codes that a checkpoint has for it are kept unless this is ``float``."""
    ignore: tuple[str, ...] = ()
    """Layers left in float: names as ``enginebay explain`` has them, with ``*`` and ``?``
    (``model.layers.0.*``, ``*.mlp.down``)."""


class Int4Weight:
    """Packs weights in 4 bits, and takes codes of up to 4 bits that a checkpoint has."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.tally = CodeTally()

    @property
    def activations(self) -> str:
        """``float``, or ``int8 dynamic, by group``."""
        return "float" if self.options.activations == "float" else "int8 dynamic, by group"

    @property
    def scheme(self) -> str:
        """Of the layers in 4 bits."""
        return "int4" if self.options.activations == "float" else "w4a8"

    @property
    def wide_scheme(self) -> str:
        """Of a head in 8 bits."""
        return "int8" if self.options.activations == "float" else "w8a8-groups"

    def pack(
        self, name: str, role: Role, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> PackedLinear:
        """A layer of 4 bits; ``int8`` or ``float`` where it is to be better.

        :param weight: [N, K] in the compute dtype; nothing of it is kept but in ``float``
        """
        columns = weight.shape[1]
        group = fitting_group(columns, self.options.group_size)
        reason = self._left(name, role)
        if not reason and group is None:
            reason = f"its {columns} columns don't divide into groups of 32"
        if reason or group is None:
            return self.tally.float_layer(name, weight, bias, reason)
        if role == "head" and self.options.head == "int8":
            codes, scales = int8_weight.quantized(weight, group)
            tensors = {"weight": codes, "scales": scales}
            return self.tally.code_layer(name, self.wide_scheme, tensors, bias, 8)
        codes, scales, offsets = quantized(weight, group, self.options.rounds)
        tensors = {"weight": codes, "scales": scales, "offsets": offsets}
        return self.tally.code_layer(name, self.scheme, tensors, bias, 4)

    def pack_stored(
        self, name: str, role: Role, stored: StoredWeight, bias: torch.Tensor | None
    ) -> PackedLinear | None:
        """The checkpoint's own codes, in its own groups; ``None`` for wider ones, but for
        those of the head where it is to be int8."""
        form = stored.form
        if self._left(name, role):
            return None
        if form.bits <= 4:
            codes, offsets = unsigned(stored)
            tensors = {"weight": codes, "scales": stored.scales, "offsets": offsets}
            return self.tally.code_layer(name, self.scheme, tensors, bias, 4)
        wide = role == "head" and self.options.head == "int8" and form.bits <= 8
        if not wide or form.offsets:
            return None
        tensors = {"weight": stored.codes.contiguous(), "scales": stored.scales}
        return self.tally.code_layer(name, self.wide_scheme, tensors, bias, 8)

    def report(self) -> QuantReport:
        """What it has packed so far."""
        return QuantReport(
            scheme=self.scheme,
            activations=self.activations,
            group_size=self.options.group_size,
            scales="group",
            weight_bytes=self.tally.weight_bytes,
            metadata_bytes=self.tally.metadata_bytes,
            float_layers=self.tally.float_layers,
        )

    def _left(self, name: str, role: Role) -> str:
        """Why a layer stays in float; empty: it doesn't."""
        if role == "head" and self.options.head == "float":
            return "head = 'float'"
        return ignored(name, self.options.ignore)


def unsigned(stored: StoredWeight) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes uint8 [N, K] in 0 .. 15, offsets float32 like the scales) of 4-bit codes.

    Codes in -8 .. 7 move up by 8, their offsets down by 8 scales: the same weights.
    """
    codes, offsets = stored.codes, stored.offsets
    if offsets is None:
        offsets = torch.zeros_like(stored.scales)
    if codes.device.type != "meta" and codes.numel() and int(codes.min()) < 0:
        codes, offsets = codes + 8, offsets - 8 * stored.scales
    return codes.to(torch.uint8), offsets


@hookimpl
def enginebay_quant(options: Options, context: QuantContext) -> Quantizer:
    """Build the scheme."""
    checked_group("int4-weight", options.group_size)
    if options.rounds < 0:
        msg = f"quant.int4-weight: rounds is {options.rounds}; it must be 0 or more"
        raise StackError(msg)
    return Int4Weight(options)
