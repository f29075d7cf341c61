"""No quantization: weights stay in the stack's compute dtype (scheme ``float``)."""

import msgspec
import torch

from enginebay import hookimpl
from enginebay.hookspecs.model import Role
from enginebay.hookspecs.quant import PackedLinear, QuantContext, Quantizer, QuantReport

from .tally import FloatBytes

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to set: the dtype is the stack's."""


class Float:
    """Passes weights on as they are; the tensors are the caller's own, not copies."""

    def __init__(self) -> None:
        self.weights = FloatBytes()

    @property
    def activations(self) -> str:
        """Activations stay in the compute dtype too."""
        return "float"

    def pack(
        self,
        name: str,
        role: Role,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> PackedLinear:
        """A layer whose ``weight`` is [N, K] in the compute dtype."""
        self.weights.add(weight)
        out_features, in_features = weight.shape
        return PackedLinear(
            name=name,
            scheme="float",
            in_features=in_features,
            out_features=out_features,
            tensors={"weight": weight},
            bias=bias,
        )

    def report(self) -> QuantReport:
        """``weight_bytes`` counts a tied tensor once."""
        return QuantReport(scheme="float", weight_bytes=self.weights.total)


@hookimpl
def enginebay_quant(options: Options, context: QuantContext) -> Quantizer:
    """Build the scheme."""
    return Float()
