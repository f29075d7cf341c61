"""Narrowing a row of logits on a CPU, compiled: one call instead of a dozen array operations.

A row is read a few times and ordered as little as possible: what can't be among those
sought is left out by a bound before anything is sorted.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from enginebay.candidates import Candidates

from .philox import entry, inner

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]

FEW: Final = (128, 512)
"""Chunks whose best set the first bounds of a nucleus."""
CHUNK: Final = 64
"""Logits that are looked at together; a multiple of the lanes."""
LANES: Final = 8
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
def _chunk_tops(logits: Any, tops: Any) -> Any:
    """The largest of each chunk into ``tops``. :return: the largest of all"""
    lanes = np.empty(LANES, np.float32)
    best = np.float32(-np.inf)
    for number in range(tops.shape[0]):
        first, last = number * CHUNK, min((number + 1) * CHUNK, logits.shape[0])
        for lane in range(LANES):
            lanes[lane] = np.float32(-np.inf)
        place = first
        while place + LANES <= last:
            for lane in range(LANES):
                value = logits[place + lane]
                lanes[lane] = value if value > lanes[lane] else lanes[lane]
            place += LANES
        top = np.float32(-np.inf)
        for lane in range(LANES):
            top = lanes[lane] if lanes[lane] > top else top
        for rest in range(place, last):
            top = logits[rest] if logits[rest] > top else top
        tops[number] = top
        best = top if top > best else best
    return best


@inner
def _weigh(logits: Any, top: Any, bits: Any, weights: Any) -> None:
    """exp(logit - top) of a chunk: 2**n times a polynomial of the rest (within 2 ulp)."""
    powers = bits.view(np.float32)
    for place in range(logits.shape[0]):
        x = logits[place] - top
        x = x if x > _LEAST else _LEAST
        whole = np.int32(x * _LOG2E - _HALF)
        number = np.float32(whole)
        r = (x - number * _LN2_HIGH) - number * _LN2_LOW
        series = _C3 + r * (_C4 + r * (_C5 + r * _C6))
        bits[place] = (whole + 127) << 23
        weights[place] = _ONE + r * (_ONE + r * (_C2 + r * series))
    for place in range(logits.shape[0]):
        weights[place] *= powers[place]


@inner
def _weights(logits: Any, top: Any, weights: Any) -> Any:
    """The weight of each logit (float32 [C]). :return: their sum in float64"""
    bits = np.empty(CHUNK, np.int32)
    sums = np.zeros(LANES, np.float64)
    for first in range(0, logits.shape[0], CHUNK):
        part = weights[first : first + CHUNK]
        _weigh(logits[first : first + CHUNK], top, bits, part)
        whole = part.shape[0] - part.shape[0] % LANES
        for place in range(0, whole, LANES):
            for lane in range(LANES):
                sums[lane] += np.float64(part[place + lane])
        for place in range(whole, part.shape[0]):
            sums[0] += np.float64(part[place])
    total = 0.0
    for lane in range(LANES):
        total += sums[lane]
    return total


@inner
def _at_least(logits: Any, tops: Any, floor: Any, found: Any) -> Any:
    """Places, ascending, of logits that reach ``floor``, into ``found``. :return: how many"""
    count = 0
    for number in range(tops.shape[0]):
        if tops[number] >= floor:
            for place in range(number * CHUNK, min((number + 1) * CHUNK, logits.shape[0])):
                if logits[place] >= floor:
                    found[count] = place
                    count += 1
    return count


@entry
def _weighed(logits: Any, tops: Any, weights: Any) -> Any:
    """Fill in the largest logit of each chunk and each logit's weight. :return: their sum"""
    return _weights(logits, _chunk_tops(logits, tops), weights)


@entry
def _topped(logits: Any, tops: Any) -> Any:
    """Fill in the largest logit of each chunk. :return: the largest of all"""
    return _chunk_tops(logits, tops)


@entry
def _reaching(logits: Any, tops: Any, floor: Any, found: Any) -> Any:
    """As ``_at_least``, for callers that aren't compiled."""
    return _at_least(logits, tops, floor, found)


def nucleus(logits: Floats, share: float) -> Places:
    """Places, ascending, of the likeliest logits (float32 [C], the largest finite) whose
    weights reach ``share`` of all, the last included; of equals the first.

    At first those above a bound that a few chunks reach are put in order. In the end: all
    that weigh less than a C-th of what may be left out can be left out together.
    """
    tops, weights = _tops_of(logits), np.empty(len(logits), np.float32)
    total = _weighed(logits, tops, weights)
    wanted = share * total
    # Rounded down: a logit more makes no difference, one less would.
    least = np.log(max((total - wanted) / len(logits), 1e-37)) - 1e-3
    for count in (*(few for few in FEW if few < len(tops)), 0):
        last = count == 0
        floor = tops.max() + np.float32(least) if last else _nth(tops, count)
        found = _found(logits, tops, floor)
        order = found[np.argsort(-logits[found], kind="stable")]
        masses = weights[order].cumsum(dtype=np.float64)
        if last or masses[-1] >= wanted:
            break
    return np.sort(order[: int(masses.searchsorted(wanted)) + 1])


def leaders(logits: Floats, count: int) -> Places:
    """Places of the largest logits (float32 [C]), ``count`` at most, descending, of equals
    the first; -inf is never among them. So many chunks reach a bound that so many logits
    then reach.
    """
    tops = _tops_of(logits)
    _topped(logits, tops)
    lowest = np.finfo(np.float32).min
    floor = max(_nth(tops, count), lowest) if count < len(tops) else lowest
    found = _found(logits, tops, floor)
    return found[np.argsort(-logits[found], kind="stable")[:count]]


def suits(candidates: Candidates) -> bool:
    """Whether the functions here can take them: float32 on a CPU."""
    logits = candidates.logits
    return logits.device.type == "cpu" and logits.dtype == torch.float32


def compiled() -> None:
    """Compile what is not compiled yet."""
    some = np.zeros(2 * CHUNK, np.float32)
    nucleus(some, 0.5)
    leaders(some, 1)


def _tops_of(logits: Floats) -> Floats:
    return np.empty(-(-len(logits) // CHUNK), np.float32)


def _nth(tops: Floats, count: int) -> np.float32:
    """The ``count``-th largest."""
    return np.float32(np.partition(tops, -count)[-count])


def _found(logits: Floats, tops: Floats, floor: Any) -> Places:
    found = np.empty(len(logits), np.int64)
    return found[: _reaching(logits, tops, np.float32(floor), found)]
