"""A checkpoint with int8 weights that stands in for the one it was made from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from enginebay.errors import ModelError
from enginebay.hookspecs.format import (
    Checkpoint,
    FormatContext,
    Quantized,
    StoredForm,
    StoredWeight,
    TensorInfo,
    TextAssets,
)
from enginebay.hookspecs.source import Files

from ..formats import safetensors


@dataclass(frozen=True)
class Prepared:
    """Weights and configuration of the one, text and generation defaults of the other."""

    original: Checkpoint
    weights: Checkpoint
    owner: object
    """Kept as long as this: the folder may be its own, and go with it."""

    @property
    def location(self) -> str:
        """Of the quantized weights."""
        return self.weights.location

    @property
    def config(self) -> Mapping[str, Any]:
        """Of the quantized weights."""
        return self.weights.config

    @property
    def generation(self) -> Mapping[str, Any]:
        """The original's."""
        return self.original.generation

    @property
    def text(self) -> TextAssets:
        """The original's: read already, and the same."""
        return self.original.text

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name."""
        return self.weights.tensors

    def load(self, name: str) -> torch.Tensor:
        """Read one tensor; float32 from codes."""
        return self.weights.load(name)

    def form(self, name: str) -> StoredForm | None:
        """How a weight is stored."""
        return self._codes().form(name)

    def stored(self, name: str) -> StoredWeight:
        """Read a weight for which ``form`` is not ``None``."""
        return self._codes().stored(name)

    def _codes(self) -> Quantized:
        if not isinstance(self.weights, Quantized):
            msg = f"{self.location}: no weight is quantized"
            raise ModelError(msg)
        return self.weights


def open_prepared(folder: Path, original: Checkpoint, owner: object) -> Prepared:
    """The model folder that was made from ``original``.

    :raises ModelError: it is damaged
    """
    reader = safetensors.enginebay_format(safetensors.Options(), FormatContext())
    opened = reader.open(Files(path=str(folder), origin=str(folder), revision=folder.name))
    if isinstance(opened, str):
        raise ModelError(opened)
    return Prepared(original, opened, owner)
