"""Quantization: loaded weights become a scheme, and the scheme names its kernels."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ..flow import Frozen
from .kernel import OpSignature
from .markers import hookspec

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from .format import Checkpoint, StoredWeight
    from .model import ModelFamily, ModelSpec, Role


Inputs = Literal["float", "int8"]
"""What a linear layer multiplies its weights with: rows in the compute dtype, or
``QuantizedRows``."""


@dataclass(frozen=True)
class PackedLinear:
    """One linear layer's weights as its kernel wants them.

    ===============  ================================================================
    scheme           tensors, as a quantizer returns them (a kernel's ``pack`` may re-lay)
    ===============  ================================================================
    ``float``        ``weight`` [N, K] in the compute dtype
    ``w8a8``         ``weight`` int8 [N, K], -128 included, ``scales`` float32 [N];
                     ``inputs`` is ``int8``
    ``int8``         ``weight`` int8 [N, K], ``scales`` float32 [N, K / group_size]
    ``int4``         ``weight`` uint8 [N, K], each 0 .. 15, ``scales`` and ``offsets``
                     float32 [N, K / group_size]: a weight is code * scale + offset
    ``w8a8-groups``  as ``int8``; ``inputs`` is ``int8``, ``input_group`` is ``group_size``
    ``w4a8``         as ``int4``; ``inputs`` and ``input_group`` as ``w8a8-groups``
    ===============  ================================================================
    """

    name: str
    scheme: str
    """Picks the ``linear`` kernel."""
    in_features: int
    out_features: int
    tensors: "dict[str, torch.Tensor]" = field(default_factory=dict)
    """``weight`` and what the scheme adds (scales, offsets)."""
    bias: "torch.Tensor | None" = None
    inputs: Inputs = "float"
    input_scale: "torch.Tensor | None" = None
    """float32 [1], when activations have one static scale; else each row has its own."""
    group_size: int = 0
    """Columns of a weight that share a scale; 0: one scale a row."""
    input_group: int = 0
    """Columns of an int8 row that share a scale; 0: one scale a row."""

    def signature(self, role: "Role", dtype: str) -> OpSignature:
        """The op that multiplies with it: ``logits`` for the head, else ``linear``."""
        sizes = (
            ("in", self.in_features),
            ("out", self.out_features),
            ("group", self.group_size),
            ("input_group", self.input_group),
        )
        return OpSignature(
            op="logits" if role == "head" else "linear",
            dtype=dtype,
            scheme=self.scheme,
            sizes=tuple(each for each in sizes if each[1] or "group" not in each[0]),
            features=("offsets",) if "offsets" in self.tensors else (),
        )


class QuantReport(Frozen, frozen=True, kw_only=True):
    """What a scheme did to a model, in figures."""

    scheme: str
    activations: str = "float"
    """``float``, ``int8 dynamic`` (a scale a token), ``int8 static``."""
    group_size: int | None = None
    scales: str = ""
    """What a scale belongs to: ``channel``, ``tensor``, ``group``."""
    weight_bytes: int = 0
    metadata_bytes: int = 0
    float_layers: dict[str, str] = {}
    """Layers left in float, and why."""
    calibration: str = ""
    """What the scales were found with: text, tokens, alpha."""


class Quantizer(Protocol):
    """Turns [N, K] weights into packed layers. Called while the model loads."""

    @property
    def activations(self) -> str:
        """``float`` or the activation scheme, for explain and the service version."""

    def pack(
        self, name: str, role: "Role", weight: "torch.Tensor", bias: "torch.Tensor | None"
    ) -> PackedLinear: ...
    def report(self) -> QuantReport:
        """What it has done so far."""


@runtime_checkable
class KeepsStored(Protocol):
    """Optional: a quantizer that takes weights as a quantized checkpoint stores them."""

    def pack_stored(
        self, name: str, role: "Role", stored: "StoredWeight", bias: "torch.Tensor | None"
    ) -> PackedLinear | None:
        """The layer with the checkpoint's own codes, or ``None`` for a form that the scheme
        can't hold: the weight is then dequantized and given to ``pack``."""


@runtime_checkable
class Preparing(Protocol):
    """Optional: a quantizer that wants to see the whole model before it is loaded."""

    def prepare(
        self, spec: "ModelSpec", family: "ModelFamily", checkpoint: "Checkpoint"
    ) -> "Checkpoint":
        """Called once, before the memory plan and the load.

        :return: the checkpoint to load in its place, of the same model; or the same one
        """


@runtime_checkable
class Writing(Protocol):
    """Optional: a quantizer that can write its model to a folder (``enginebay quantize``)."""

    def write(
        self,
        spec: "ModelSpec",
        family: "ModelFamily",
        checkpoint: "Checkpoint",
        folder: "Path",
    ) -> str:
        """Write a model folder that a format plugin opens.

        :param folder: exists, and is empty
        :return: for people: what it was calibrated on, and how
        """


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
