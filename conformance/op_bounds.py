"""How far a float32 kernel's results may be from float64: one table for every op."""

from typing import Final, NamedTuple


class Bound(NamedTuple):
    """The greatest error that an op may have."""

    name: str
    figure: float
    reason: str


BOUNDS: Final = (
    Bound(
        "elementwise",
        2e-6,
        "of rms_norm and silu_and_mul, relative above 1: 16 ulp, for a sum in any order, a root "
        "or an exponential, and three products",
    ),
    Bound(
        "product",
        4e-6,
        "of a float product, relative above 1, per square root of its length, for rows and "
        "weights of unit variance: the roundings of a sum in any order, 30 times over",
    ),
    Bound(
        "scaled",
        5e-7,
        "of an int8 product, relative to what is added up (product, bias, residual): the sum is "
        "exact, then come one conversion and five roundings of 6e-8 each",
    ),
    Bound(
        "scale",
        2e-7,
        "of a row's scale, relative, where rows are quantized as they are: a division and "
        "what a reciprocal adds",
    ),
    Bound(
        "tie",
        1e-4,
        "of a value that quantization rounds, in steps: 127 steps times the error of a scale; "
        "nearer than that to a half, either neighbour is right",
    ),
    Bound(
        "fused_scale",
        4e-6,
        "of a row's scale behind a norm or an activation, relative: twice `elementwise`",
    ),
    Bound(
        "fused_tie",
        1e-3,
        "as `tie`, behind a norm or an activation: 127 steps times twice `fused_scale`",
    ),
)
"""Name, figure, reason. Attention has its own: ``attention_checks.ATTENTION``."""


def bound(name: str) -> float:
    """The figure of that name."""
    return next(each.figure for each in BOUNDS if each.name == name)
