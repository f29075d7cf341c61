"""Format: files on disk become a checkpoint, every tensor accounted for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..flow import Frozen
from .markers import hookspec

if TYPE_CHECKING:
    import tokenizers
    import torch

    from .source import Files


class TensorInfo(Frozen, frozen=True, kw_only=True):
    """One stored tensor: logical shape, stored type, the file that defines it."""

    shape: tuple[int, ...]
    dtype: str
    file: str
    num_bytes: int = 0
    """As stored; 0 when the format doesn't say."""
    metadata_bytes: int = 0
    """Of those: scales, minimums and whatever else quantized blocks carry beside codes."""


class StoredForm(Frozen, frozen=True, kw_only=True):
    """How a checkpoint stores one quantized weight [N, K]."""

    bits: int
    group_size: int
    """Columns that share a scale; K when a row has one."""
    offsets: bool = False
    """Whether weights have minimums or zero points."""
    inputs: str = "float"
    """``int8`` when the layer was made for int8 activations."""
    static: bool = False
    """Whether activations have one scale, found by calibration."""


@dataclass(frozen=True)
class StoredWeight:
    """A quantized weight [N, K], whatever its layout on disk was.

    A weight is ``codes[n, k] * scales[n, k // group_size] + offsets[...]``.
    """

    form: StoredForm
    codes: "torch.Tensor"
    """int8 [N, K]; 4-bit ones too, in -8 .. 7 or 0 .. 15"""
    scales: "torch.Tensor"
    """float32 [N, K / group_size]"""
    offsets: "torch.Tensor | None" = None
    """float32, like ``scales``: a minimum, or - zero point * scale"""
    input_scale: "torch.Tensor | None" = None
    """float32 [1]"""

    def dequantized(self) -> "torch.Tensor":
        """float32 [N, K], memory of its own."""
        rows, columns = self.codes.shape
        grouped = self.codes.float().view(rows, self.scales.shape[1], -1)
        grouped *= self.scales.unsqueeze(-1)
        if self.offsets is not None:
            grouped += self.offsets.unsqueeze(-1)
        return grouped.view(rows, columns)


@dataclass(frozen=True)
class TextAssets:
    """How text becomes tokens and messages become text."""

    tokenizer: "tokenizers.Tokenizer"
    """Shared by threads: nobody may change its truncation or padding."""
    identity: str
    """Hash of the tokenizer's content."""
    templates: dict[str, str] = field(default_factory=dict)
    """Chat templates by name; ``default`` is used unless asked otherwise."""
    special_tokens: dict[str, str] = field(default_factory=dict)
    """``bos_token``, ``eos_token``, ... as templates see them."""
    special_ids: frozenset[int] = frozenset()
    """Control tokens: dropped from text by ``skip_special_tokens``."""
    eos_token_ids: tuple[int, ...] = ()


class Checkpoint(Protocol):
    """A model's files, opened. Names and configuration are Hugging Face's."""

    @property
    def location(self) -> str:
        """Path, for messages."""

    @property
    def config(self) -> Mapping[str, Any]:
        """As ``config.json``; a GGUF's metadata is translated to it."""

    @property
    def generation(self) -> Mapping[str, Any]:
        """As ``generation_config.json``; empty when there is none."""

    @property
    def text(self) -> TextAssets: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...
    def load(self, name: str) -> "torch.Tensor":
        """Read one tensor, dequantized to float when it is stored in blocks."""


@runtime_checkable
class Quantized(Protocol):
    """Optional: a checkpoint with weights stored as codes. ``tensors`` lists them by the
    names and shapes that they have unquantized, and ``load`` dequantizes them."""

    def form(self, name: str) -> StoredForm | None:
        """How a weight is stored, without reading it; ``None``: as plain numbers."""

    def stored(self, name: str) -> StoredWeight:
        """Read a weight for which ``form`` is not ``None``."""


class Format(Protocol):
    """A way to store a model."""

    def open(self, files: "Files") -> Checkpoint | str:
        """A checkpoint, or why these files are not of this format.

        :raises ModelError: they are, and are damaged; names the file
        """


@dataclass(frozen=True)
class FormatContext:
    """What a format is built with: nothing yet."""


@hookspec(firstresult=True)
def enginebay_format(options: Any, context: FormatContext) -> Format:  # type: ignore[empty-body]
    """Build a format reader. Called once for each name in the stack's ``formats``.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: nothing yet
    """
