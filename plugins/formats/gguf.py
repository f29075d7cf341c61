"""GGUF files: one file with weights, configuration and tokenizer.

Everything is shown as Hugging Face names it: tensor names, ``config.json`` keys, and the
row order of rotated projections.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from enginebay import hookimpl
from enginebay.errors import ModelError
from enginebay.hookspecs.format import (
    Checkpoint,
    Format,
    FormatContext,
    StoredForm,
    StoredWeight,
    TensorInfo,
    TextAssets,
)
from enginebay.hookspecs.source import Files

from .gguf_blocks import Bytes, metadata_bytes, unpack
from .gguf_codes import block_codes, block_form
from .gguf_config import Metadata, read_config
from .gguf_file import MAGIC, GgufFile, StoredTensor
from .gguf_names import ROPE_FACTORS, half_split_rows, hugging_face_name
from .gguf_tokenizer import read_text_assets

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How GGUF files are read."""

    pre_tokenizer: str | None = None
    """How text is cut into words, in place of the file's ``tokenizer.ggml.pre``; for
    files converted before that entry existed."""


class GgufCheckpoint:
    """One GGUF file. Weights stay on disk until ``load`` or ``stored`` asks."""

    def __init__(self, path: Path, options: Options) -> None:
        """:raises ModelError: damaged, or a model that can't be read; names the file"""
        self._file = GgufFile(path)
        self._options = options
        metadata = Metadata(path, self._file.metadata)
        self._permuted = metadata.architecture == "llama"
        self._stored = {
            hugging_face_name(name): tensor
            for name, tensor in self._file.tensors.items()
            if name != ROPE_FACTORS
        }
        shapes = {name: tensor.shape for name, tensor in self._stored.items()}
        self._config = read_config(metadata, shapes, self._rope_factors())

    @property
    def location(self) -> str:
        """The file."""
        return str(self._file.path)

    @property
    def config(self) -> Mapping[str, Any]:
        """The metadata as a ``config.json``."""
        return self._config

    @property
    def generation(self) -> Mapping[str, Any]:
        """Empty: GGUF has no place for it."""
        return {}

    @cached_property
    def text(self) -> TextAssets:
        """Tokenizer and templates, built at the first use."""
        return read_text_assets(self._file.path, self._file.metadata, self._options.pre_tokenizer)

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name; ``dtype`` is ggml's name of its type."""
        return {
            name: TensorInfo(
                shape=tensor.shape,
                dtype=tensor.kind.name,
                file=self.location,
                num_bytes=tensor.num_bytes,
                metadata_bytes=metadata_bytes(tensor.kind, tensor.num_bytes),
            )
            for name, tensor in self._stored.items()
        }

    def load(self, name: str) -> torch.Tensor:
        """Read one tensor: float32 from block types, else the stored type.

        :raises ModelError: there is no such tensor, or its type can't be dequantized
        """
        tensor = self._find(name)
        return unpack(self._rows(name, tensor), tensor.kind).view(tensor.shape)

    def form(self, name: str) -> StoredForm | None:
        """How a matrix is stored; ``None``: as numbers, or in blocks that stay closed."""
        tensor = self._stored.get(name)
        return None if tensor is None else block_form(tensor.kind, tensor.shape)

    def stored(self, name: str) -> StoredWeight:
        """Read a matrix for which ``form`` is not ``None``, rows in Hugging Face's order.

        :raises ModelError: there is no such tensor, or its blocks can't be taken apart
        """
        tensor, form = self._find(name), self.form(name)
        if form is None:
            msg = f"{self.location}: codes of {name!r} ({tensor.kind.name}) can't be had"
            raise ModelError(msg)
        return block_codes(self._rows(name, tensor), tensor.kind, form)

    def _find(self, name: str) -> StoredTensor:
        if name not in self._stored:
            msg = f"{self.location}: there is no tensor {name!r}"
            raise ModelError(msg)
        return self._stored[name]

    def _rows(self, name: str, tensor: StoredTensor) -> Bytes:
        rows = self._file.rows(tensor)
        heads = self._rotated_heads(name)
        if heads is None:
            return rows
        if len(tensor.shape) == 1:
            rows = rows.reshape(tensor.shape[0], -1)
        order = half_split_rows(len(rows), heads)
        return np.asarray(rows[order]).reshape(self._file.rows(tensor).shape)

    def _rotated_heads(self, name: str) -> int | None:
        """Heads of a projection whose rows ggml has in another order."""
        if not self._permuted:
            return None
        if ".self_attn.q_proj." in name:
            return int(self._config["num_attention_heads"])
        return int(self._config["num_key_value_heads"]) if ".self_attn.k_proj." in name else None

    def _rope_factors(self) -> list[float] | None:
        tensor = self._file.tensors.get(ROPE_FACTORS)
        if tensor is None:
            return None
        return [float(each) for each in unpack(self._file.rows(tensor), tensor.kind).flatten()]


class Gguf:
    """Opens GGUF files, and folders with exactly one."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def open(self, files: Files) -> Checkpoint | str:
        """A checkpoint, or why these files are not of this format.

        :raises ModelError: they are, and are damaged or ambiguous; names the file
        """
        path = Path(files.path)
        if path.is_dir():
            found = sorted(path.glob("*.gguf"))
            if not found:
                return f"{path} has no .gguf files"
            if len(found) > 1:
                names = ", ".join(each.name for each in found)
                msg = f"{path} has several GGUF files; name one of them: {names}"
                raise ModelError(msg)
            path = found[0]
        elif path.suffix != ".gguf" and not _has_magic(path):
            return f"{path.name} is not a .gguf file"
        return GgufCheckpoint(path, self._options)


def _has_magic(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


@hookimpl
def enginebay_format(options: Options, context: FormatContext) -> Format:
    """Build the GGUF reader."""
    return Gguf(options)
