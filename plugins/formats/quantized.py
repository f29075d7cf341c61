"""Safetensors checkpoints with quantized weights: each is shown as one tensor.

``config.json`` names the method that wrote them; one module for each method finds the
weights and reads them. What can't be read right is refused, never read as plain numbers.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch

from enginebay.errors import ModelError
from enginebay.hookspecs.format import (
    Checkpoint,
    StoredForm,
    StoredWeight,
    TensorInfo,
    TextAssets,
)

from . import awq, compressed_tensors, gptq
from .quantization_config import QuantizationConfig, find_quantization
from .quantized_weight import QuantizedWeight, refuse_leftovers

_METHODS: Final[
    dict[str, Callable[[QuantizationConfig, Checkpoint], dict[str, QuantizedWeight]]]
] = {
    "awq": awq.find_weights,
    "compressed-tensors": compressed_tensors.find_weights,
    "gptq": gptq.find_weights,
}
"""``quant_method`` -> what finds the weights, by the names they have unquantized."""


class QuantizedCheckpoint:
    """A checkpoint whose quantized weights are shown whole, under their usual names."""

    def __init__(self, plain: Checkpoint, weights: Mapping[str, QuantizedWeight]) -> None:
        """``plain``: the same checkpoint, tensor by stored tensor."""
        self._plain = plain
        self._weights = weights

    @property
    def location(self) -> str:
        """The folder."""
        return self._plain.location

    @property
    def config(self) -> Mapping[str, Any]:
        """``config.json``, its ``quantization_config`` included."""
        return self._plain.config

    @property
    def generation(self) -> Mapping[str, Any]:
        """``generation_config.json``."""
        return self._plain.generation

    @property
    def text(self) -> TextAssets:
        """Tokenizer and templates."""
        return self._plain.text

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name; quantized ones have the type ``int8`` or ``int4``."""
        stored = self._plain.tensors
        parts = {
            part for weight in self._weights.values() for part in (weight.codes, *weight.others)
        }
        plain = {name: info for name, info in stored.items() if name not in parts}
        return plain | {name: weight.info(stored) for name, weight in self._weights.items()}

    def load(self, name: str) -> torch.Tensor:
        """Read one tensor: float32 from codes, else the stored type.

        :raises ModelError: there is no such tensor, or its parts don't fit together
        """
        weight = self._weights.get(name)
        return self._plain.load(name) if weight is None else weight.read().dequantized()

    def form(self, name: str) -> StoredForm | None:
        """How a weight is stored; ``None``: as plain numbers, or with columns out of order."""
        weight = self._weights.get(name)
        return None if weight is None else weight.form

    def stored(self, name: str) -> StoredWeight:
        """Read a weight for which ``form`` is not ``None``.

        Codes of 4 bits are 0 .. 15 when it has offsets, else -8 .. 7.

        :raises ModelError: its parts don't fit together
        """
        weight = self._weights.get(name)
        if weight is None or weight.form is None:
            msg = f"{self.location}: the codes of {name!r} can't be had, only its values"
            raise ModelError(msg)
        return weight.read().stored(weight.form)


def take_over(plain: Checkpoint, folder: Path) -> Checkpoint:
    """The checkpoint with its quantized weights shown whole; ``plain`` when it has none.

    :raises ModelError: it is quantized in a way that can't be read
    """
    config = find_quantization(folder, plain.config)
    if config is None:
        refuse_leftovers(plain.tensors, "config.json has no 'quantization_config'")
        return plain
    if not isinstance(config.method, str) or config.method not in _METHODS:
        known = ", ".join(_METHODS)
        fix = f"what can be read is {known}; or use the unquantized model or a GGUF file"
        raise config.refusal("quant_method", config.method, fix)
    weights = _METHODS[config.method](config, plain)
    if not weights:
        msg = f"{config.where} says {config.method}, but no tensor of {plain.location} is quantized"
        raise ModelError(f"{msg}; remove the entry if the weights are plain")
    _refuse_twins(plain, weights)
    taken = QuantizedCheckpoint(plain, weights)
    rest = {name: info for name, info in taken.tensors.items() if name not in weights}
    refuse_leftovers(rest, f"{config.where} leaves it plain")
    return taken


def _refuse_twins(plain: Checkpoint, weights: Mapping[str, QuantizedWeight]) -> None:
    for name, weight in weights.items():
        if weight.codes != name and name in plain.tensors:
            msg = f"{plain.tensors[name].file}: {name!r} is stored twice, as numbers and as codes"
            raise ModelError(f"{msg} ({weight.codes!r}); remove one of them")
