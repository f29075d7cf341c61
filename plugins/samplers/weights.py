"""Weights of logits, and masses: sums of weights that come out alike in any order.

A weight is exp(logit - largest) in float32. Its mass is the nearest whole number of
2**-44 parts: sums of whole numbers are exact, so that no order of adding shows in what a
mass reaches. A token that lies more than 31.2 below the largest has no mass.
"""

from typing import Any, Final

import numpy as np

from .jit import inner, part
from .lanes import CHUNK, bits_of, power_of_two

PARTS: Final = 2.0**44
"""Of the heaviest token's mass, 1."""
FAR: Final = np.float32(31.3)
"""So far below the largest a logit has no mass: exp(-31.3) is less than half a part."""
_ROUND: Final = 1.5 * 2.0**52 / PARTS
"""Added to a weight, it puts its mass into the lowest bits of a float64."""
_BLOCK: Final = 1024
"""Logits worked on at once: their partial results stay in the fastest cache."""

_LOG2E: Final = np.float32(1.4426950408889634)
_LN2_HIGH: Final = np.float32(0.693359375)
_LN2_LOW: Final = np.float32(-2.12194440e-4)
_LEAST: Final = np.float32(-87.0)
"""Below it a weight would be no normal float32: it is taken for exp(-87), about 1e-38."""
_HALF: Final = np.float32(0.5)
_ONE: Final = np.float32(1.0)
_C2: Final = np.float32(1 / 2)
_C3: Final = np.float32(1 / 6)
_C4: Final = np.float32(1 / 24)
_C5: Final = np.float32(1 / 120)
_C6: Final = np.float32(1 / 720)


@inner
def _weigh(logits: Any, top: Any, weights: Any) -> None:
    """exp(logit - top): 2**n times a polynomial of the rest (within 2 ulp)."""
    for place in range(logits.shape[0]):
        x = logits[place] - top
        x = x if x > _LEAST else _LEAST
        whole = np.int32(x * _LOG2E - _HALF)
        number = np.float32(whole)
        r = (x - number * _LN2_HIGH) - number * _LN2_LOW
        series = _C3 + r * (_C4 + r * (_C5 + r * _C6))
        weight = _ONE + r * (_ONE + r * (_C2 + r * series))
        weights[place] = weight * power_of_two(whole)


@inner
def mass_of(weight: Any) -> Any:
    """Mass of one weight in 1 / PARTS (int64)."""
    return bits_of(np.float64(weight) + _ROUND) - bits_of(_ROUND)


@inner
def _mass_of_all(weights: Any) -> Any:
    """Sum of the weights' masses: of bits, which vector lanes can add in any order."""
    total = np.int64(0)
    for place in range(weights.shape[0]):
        total += bits_of(np.float64(weights[place]) + _ROUND)
    return total - weights.shape[0] * bits_of(_ROUND)


@part
def fill_weights(logits: Any, tops: Any, top: Any, weights: Any) -> Any:
    """The weight of each logit (float32 [C]), where it may have a mass.

    :param tops: the largest of each chunk, ``top`` that of all
    :return: the sum of all masses (int64)
    """
    total = np.int64(0)
    chunks = _BLOCK // CHUNK
    for block in range(-(-tops.shape[0] // chunks)):
        near = False
        for number in range(block * chunks, min((block + 1) * chunks, tops.shape[0])):
            near |= tops[number] >= top - FAR
        if near:
            first = block * _BLOCK
            part = weights[first : first + _BLOCK]
            _weigh(logits[first : first + _BLOCK], top, part)
            total += _mass_of_all(part)
    return total
