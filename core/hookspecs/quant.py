"""Quantization: loaded weights become a scheme, and the scheme names its kernels."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..flow import Frozen
from .markers import hookspec

if TYPE_CHECKING:
    import torch

    from .model import Role


@dataclass(frozen=True)
class PackedLinear:
    """One linear layer's weights as its kernel wants them."""

    name: str
    scheme: str
    """Picks the ``linear`` kernel; ``float`` for plain [N, K] weights."""
    in_features: int
    out_features: int
    tensors: "dict[str, torch.Tensor]" = field(default_factory=dict)
    """``weight`` and what the scheme adds (scales, zero points)."""
    bias: "torch.Tensor | None" = None


class QuantReport(Frozen, frozen=True, kw_only=True):
    """What a scheme did to a model, in figures."""

    scheme: str
    group_size: int | None = None
    weight_bytes: int = 0
    metadata_bytes: int = 0
    float_layers: tuple[str, ...] = ()
    calibration: str = ""


class Quantizer(Protocol):
    """Turns [N, K] weights into packed layers. Called while the model loads."""

    @property
    def activations(self) -> str:
        """``float`` or the activation scheme, for explain and the service version."""

    def pack(
        self, name: str, role: "Role", weight: "torch.Tensor", bias: "torch.Tensor | None"
    ) -> PackedLinear: ...
    def report(self) -> QuantReport: ...


@dataclass(frozen=True)
class QuantContext:
    """What a quantization plugin is built with."""

    dtype: str
    """The stack's compute dtype."""
    device: str


@hookspec(firstresult=True)
def enginebay_quant(options: Any, context: QuantContext) -> Quantizer:  # type: ignore[empty-body]
    """Build the quantization plugin. Called once, before weights are loaded.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: compute dtype and device
    """
