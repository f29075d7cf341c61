"""Format: files on disk become a checkpoint, every tensor accounted for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

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
