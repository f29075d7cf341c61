"""SmoothQuant: what is hard to quantize moves from activations into weights.

A channel of large activations takes the int8 range for itself, and leaves the others a few
codes. Dividing channel k of the rows by a factor s[k] and multiplying column k of the
weight with it changes no product; with s = max|x|^alpha / max|w|^(1 - alpha) both fit
(Xiao et al., arXiv 2211.10438). The division costs nothing: it is folded into whatever
made the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from .layers import Layer
from .w8a8 import GREATEST, channel_scales

ROWS: Final = 512
"""Rows, spread over the calibration text, that alphas are compared on."""
OUTPUTS: Final = 1024
"""Of a wide layer, so many rows of the weight stand for all when alphas are compared."""
LEAST: Final = 1e-5


@dataclass(frozen=True)
class Factors:
    """How one layer was smoothed."""

    alpha: float
    columns: torch.Tensor
    """float32 [K]: what the weight's columns are multiplied with"""
    source: torch.Tensor
    """The same, one a channel of the source: [K], or [K / repeats] for values"""


def smooth(
    chosen: Sequence[Layer], block: Sequence[Layer], alphas: Sequence[float]
) -> dict[str, float]:
    """Smooth layers in place: weights, biases, and what made their rows; of a norm's weight
    it is only noted in the layer by what it is to be divided.

    :param chosen: the layers to smooth
    :param block: all whose weights may still be changed
    :param alphas: to choose from, layer by layer, by the error of its output; empty: none
    :return: the alphas chosen, by layer name
    """
    # Factors for values and gated rows change other layers of the block, so they go first.
    order = sorted(chosen, key=lambda layer: layer.source is None or layer.source.kind == "norm")
    found = {}
    for layer in order if alphas else ():
        if layer.source is None or layer.source.layer not in (None, *block):
            continue
        factors = best_factors(layer, alphas)
        found[layer.name], layer.factors = factors.alpha, factors.source
        layer.weight *= factors.columns
        layer.rows = layer.rows / factors.columns
        _divide_source(layer, factors.source)
    return found


def best_factors(layer: Layer, alphas: Sequence[float]) -> Factors:
    """The alpha with the least squared error of the layer's output in int8."""
    found = [factors_of(layer, alpha) for alpha in alphas]
    if len(found) == 1:
        return found[0]
    rows = spread(layer.rows, ROWS)
    weight = spread(layer.weight, OUTPUTS)
    wanted = rows @ weight.T
    errors = [
        float((in_int8(rows / each.columns) @ in_int8(weight * each.columns).T - wanted).norm())
        for each in found
    ]
    return found[errors.index(min(errors))]


def factors_of(layer: Layer, alpha: float) -> Factors:
    """Factors for one alpha; 1 where a channel is always 0."""
    rows = layer.rows.abs().amax(dim=0)
    weight = layer.weight.abs().amax(dim=0)
    source = layer.source
    if source is not None and source.kind == "values":
        rows, weight = (
            each.view(-1, source.repeats, source.head_dim).amax(dim=1).flatten()
            for each in (rows, weight)
        )
    factors = rows**alpha / weight.clamp_min(LEAST) ** (1 - alpha)
    factors = torch.where((rows == 0) | (weight == 0), 1.0, factors.clamp_min(LEAST))
    columns = factors
    if source is not None and source.kind == "values":
        heads = factors.view(-1, 1, source.head_dim)
        columns = heads.expand(-1, source.repeats, -1).flatten()
    return Factors(alpha, columns, factors)


def in_int8(x: torch.Tensor) -> torch.Tensor:
    """x [R, K] as it is after quantization, each row with its own scale."""
    scales = channel_scales(x).unsqueeze(1)
    return torch.round(x / scales).clamp_(-GREATEST, GREATEST).mul_(scales)


def spread(x: torch.Tensor, most: int) -> torch.Tensor:
    """At most so many rows, evenly over all."""
    return x[:: max(1, -(-x.shape[0] // most))]


def _divide_source(layer: Layer, factors: torch.Tensor) -> None:
    maker = layer.source.layer if layer.source is not None else None
    if maker is None:
        return
    rows = maker.part(len(maker.parts) - 1)
    maker.weight[rows] /= factors.unsqueeze(1)
    if maker.bias is not None:
        maker.bias[rows] /= factors
