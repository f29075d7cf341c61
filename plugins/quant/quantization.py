"""A float model becomes an int8 one: calibrated, smoothed, rounded, layer by layer."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from enginebay.errors import ModelError
from enginebay.hookspecs.format import Checkpoint
from enginebay.hookspecs.model import ModelFamily, ModelSpec, Role

from .int_quantized import quantization_config
from .layers import Layer
from .smoothing import smooth
from .w8a8 import GREATEST, quantized
from .walk import walk

HALVES = ("BF16", "F16")


@dataclass(frozen=True)
class Recipe:
    """How a model is to be quantized."""

    alphas: tuple[float, ...]
    """To choose from, layer by layer; empty: no smoothing."""
    static: bool
    left: Callable[[str, tuple[str, ...], Role], str]
    """Why a layer (name, parts, role) stays in float; empty: it doesn't."""


@dataclass
class Quantized:
    """A model's tensors as they are to be stored, and what was done to it."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    """Modules in float."""
    alphas: dict[str, float] = field(default_factory=dict)
    """Chosen, by layer name."""
    tied: bool = False
    """Whether the head is still the embedding table."""

    def config(self, given: Mapping[str, Any], *, static: bool) -> dict[str, Any]:
        """The model's ``config.json``, changed to say what it now is."""
        config = {key: value for key, value in given.items() if key != "compression_config"}
        config["tie_word_embeddings"] = self.tied
        config["quantization_config"] = quantization_config(self.left, static=static)
        return config

    def told_alphas(self) -> str:
        """How often each was chosen."""
        counts = sorted(Counter(self.alphas.values()).items())
        return ", ".join(f"alpha {alpha:g} in {count} layers" for alpha, count in counts)


def quantize_model(
    spec: ModelSpec,
    family: ModelFamily,
    checkpoint: Checkpoint,
    sequences: Sequence[Sequence[int]],
    recipe: Recipe,
) -> Quantized:
    """Run a model over calibration text and quantize each block once it has been seen.

    :raises ModelError: two layers take the same norm's weight, which can't be smoothed
    """
    made = Quantized()
    weights = family.weights(msgspec.structs.replace(spec, tie_embeddings=False))
    heads = [weight.name for weight in weights if weight.role == "head"]

    def finish(layers: Sequence[Layer]) -> None:
        reasons = {layer.name: recipe.left(layer.name, layer.parts, layer.role) for layer in layers}
        open_ = [layer for layer in layers if not reasons[layer.name]]
        made.alphas |= smooth(open_, layers, recipe.alphas)
        for layer in layers:
            _divide_norm(made, checkpoint, layer)
            names = tuple(heads) if layer.role == "head" else layer.parts
            if not reasons[layer.name]:
                _store_int8(made, layer, names, static=recipe.static)
            elif layer.role != "head" or not spec.tie_embeddings:
                _store_float(made, layer, names)
            else:
                made.left.append(names[0].removesuffix(".weight"))
            layer.drop()

    kept = walk(spec, family, checkpoint, sequences, finish)
    for weight in family.weights(spec):
        if weight.name not in made.tensors:
            halves = checkpoint.tensors[weight.name].dtype in HALVES
            known = kept.get(weight.name)
            made.tensors[weight.name] = (
                checkpoint.load(weight.name) if known is None or halves else known
            )
    made.tied = spec.tie_embeddings and heads[0] not in made.tensors
    return made


def _divide_norm(made: Quantized, checkpoint: Checkpoint, layer: Layer) -> None:
    """Fold the inverse of a layer's factors into the norm before it."""
    if layer.factors is None or layer.source is None or layer.source.kind != "norm":
        return
    name = layer.source.norm
    if name in made.tensors:
        msg = (
            f"{checkpoint.location}: {name!r} feeds two layers that run at different times, "
            "so that it can't be smoothed for both; set smoothing = false"
        )
        raise ModelError(msg)
    made.tensors[name] = checkpoint.load(name).float() / layer.factors


def _store_int8(made: Quantized, layer: Layer, names: tuple[str, ...], *, static: bool) -> None:
    """Codes and scales, part by part."""
    codes, scales = quantized(layer.weight)
    greatest = (layer.rows.abs().max() / GREATEST).clamp_min(1e-10).reshape(1)
    for number, name in enumerate(names):
        part, module = layer.part(number), name.removesuffix(".weight")
        made.tensors[name] = codes[part]
        made.tensors[f"{module}.weight_scale"] = scales[part].unsqueeze(1)
        if static:
            made.tensors[f"{module}.input_scale"] = greatest.clone()
        _store_bias(made, layer, part, module)


def _store_float(made: Quantized, layer: Layer, names: tuple[str, ...]) -> None:
    """Weights as they are, but for what layers behind this one folded into its rows."""
    for number, name in enumerate(names):
        part, module = layer.part(number), name.removesuffix(".weight")
        made.tensors[name] = layer.weight[part]
        made.left.append(module)
        _store_bias(made, layer, part, module)


def _store_bias(made: Quantized, layer: Layer, part: slice, module: str) -> None:
    if layer.bias is not None:
        made.tensors[f"{module}.bias"] = layer.bias[part]
