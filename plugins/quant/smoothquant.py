"""W8A8: int8 weights with a scale a row, int8 activations with a scale a token.

Products of int8 with int8 add up exactly in int32, in any order: a row's result has the
same bits whatever stands beside it.
"""

from fnmatch import fnmatchcase
from typing import Literal

import msgspec
import torch

from enginebay import hookimpl
from enginebay.hookspecs.format import StoredWeight
from enginebay.hookspecs.model import Role
from enginebay.hookspecs.quant import PackedLinear, QuantContext, Quantizer, QuantReport

from .tally import Tally
from .w8a8 import quantized

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is quantized, and how."""

    head: Literal["int8", "float"] = "int8"
    """The last layer: int8 as the others, or in the compute dtype (better, slower)."""
    ignore: tuple[str, ...] = ()
    """Layers left in float: names as ``enginebay explain`` has them, with ``*`` and ``?``
    (``model.layers.0.*``, ``*.mlp.down``)."""


class SmoothQuant:
    """Packs weights for int8 products, and takes int8 codes that a checkpoint has."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.tally = Tally()

    @property
    def activations(self) -> str:
        """int8, each token with its own scale."""
        return "int8 dynamic"

    def pack(
        self, name: str, role: Role, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> PackedLinear:
        """A layer of the scheme ``w8a8``, or ``float`` where it is to be left alone.

        :param weight: [N, K] in the compute dtype; nothing of it is kept but in ``float``
        """
        reason = self._left(name, role)
        if reason:
            return self.tally.float_layer(name, weight, bias, reason)
        codes, scales = quantized(weight)
        return self.tally.int8_layer(name, codes, scales, bias)

    def pack_stored(
        self, name: str, role: Role, stored: StoredWeight, bias: torch.Tensor | None
    ) -> PackedLinear | None:
        """The checkpoint's own codes, where they have this scheme's form: int8 without
        offsets, one scale a row, made for int8 activations."""
        form = stored.form
        whole_rows = form.bits == 8 and form.group_size == stored.codes.shape[1]
        if self._left(name, role) or not whole_rows or form.offsets or form.inputs != "int8":
            return None
        scales = stored.scales.flatten()
        return self.tally.int8_layer(name, stored.codes, scales, bias, stored.input_scale)

    def report(self) -> QuantReport:
        """What it has packed so far."""
        return QuantReport(
            scheme="w8a8",
            activations=self.activations,
            scales="channel",
            weight_bytes=self.tally.weight_bytes,
            metadata_bytes=self.tally.metadata_bytes,
            float_layers=self.tally.float_layers,
        )

    def _left(self, name: str, role: Role) -> str:
        """Why a layer stays in float; empty: it doesn't."""
        for pattern in self.options.ignore:
            if fnmatchcase(name, pattern):
                return f"matches ignore = {pattern!r}"
        if role == "head" and self.options.head == "float":
            return "head = 'float'"
        return ""


@hookimpl
def enginebay_quant(options: Options, context: QuantContext) -> Quantizer:
    """Build the scheme."""
    return SmoothQuant(options)
