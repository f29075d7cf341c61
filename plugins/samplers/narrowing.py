"""Narrowing a row of logits on a CPU, compiled: no row is put in order, few are listed.

Whatever a transform keeps is a head of the order by logit, of equals by place: all above
an edge, and so many of those that equal it. A short head becomes a list; of a long one
the full row stays, the others banned, which a draw takes as fast as any full row.
"""

import math
from typing import Any, Final

import numpy as np
import torch

from enginebay.candidates import Candidates

from .edge import edge_of, gather, mask_of
from .jit import entry, part
from .lanes import CHUNK, lowest_bit
from .tops import Floats, fill_tops, tops_of
from .weights import FAR, PARTS, fill_weights, mass_of

MANY: Final = 512
"""Candidates from which on a full row, worked on in vector lanes, is the faster way."""
CHUNKS: Final = 128
"""Chunks whose best set the first bound of a nucleus."""
_LOWEST: Final = np.float32(np.finfo(np.float32).min)
_MARGIN: Final = 1e-3
"""By which a bound on logits is lowered: weights and their logarithms are rounded."""


@part
def _nth(numbers: Any, count: Any, least: Any) -> Any:
    """The ``count``-th largest of more; ``least`` for all below it."""
    values, ones = np.empty_like(numbers), np.ones(numbers.shape[0], np.int64)
    for place in range(values.shape[0]):
        values[place] = numbers[place] if numbers[place] > least else least
    return edge_of(values, ones, values.shape[0], count)[0]


@part
def _listed(logits: Any, tops: Any, edge: Any, equals: Any, places: Any, values: Any) -> Any:
    """Places, ascending, and logits of a head. :return: how many, -1 when there is no room"""
    count = 0
    for number in range(tops.shape[0]):
        if tops[number] < edge:
            continue
        mask = mask_of(logits, number, edge)
        while mask != 0:
            place = number * CHUNK + lowest_bit(mask)
            mask &= mask - np.uint64(1)
            logit = logits[place]
            if logit == edge:
                if equals == 0:
                    continue
                equals -= 1
            if count == places.shape[0]:
                return -1
            places[count], values[count] = place, logit
            count += 1
    return count


@entry
def _leaders(logits: Any, tops: Any, count: Any, places: Any, listed: Any) -> Any:
    """Head of the ``count`` largest; fewer when the others are banned.

    A bound for many is guessed from every 16th logit.
    """
    floor = _LOWEST
    if count < tops.shape[0]:
        floor = _nth(tops, count, _LOWEST)
    elif count < logits.shape[0] // 2:
        floor = _nth(logits[::16], count // 12 + 32, _LOWEST)
    found = np.empty(logits.shape[0], np.int32)
    num_found = gather(logits, tops, floor, found)
    if num_found < count:
        num_found = gather(logits, tops, _LOWEST, found)
    values, masses = np.empty(num_found, np.float32), np.ones(num_found, np.int64)
    for place in range(num_found):
        values[place] = logits[found[place]]
    edge, equals = edge_of(values, masses, num_found, count)
    return _listed(logits, tops, edge, equals, places, listed), edge, equals


@part
def _least(count: Any, top: Any, spare: Any) -> Any:
    """A logit that all that must be kept reach, when so much mass may be left out."""
    least = top - FAR
    share = (np.float64(spare) / count - 0.5) / PARTS
    if share > 0.0:
        least = max(least, np.float32(np.float64(top) + np.log(share) - _MARGIN))
    return least


@entry
def _nucleus(logits: Any, tops: Any, share: Any, places: Any, listed: Any) -> Any:
    """Head whose mass reaches ``share`` of all.

    At first only logits above a bound that so many chunks reach are looked at. In the
    end: all that weigh less than a C-th of what may be left out can be left out together,
    and so can all that have no mass.
    """
    top = np.float32(-np.inf)
    for number in range(tops.shape[0]):
        top = tops[number] if tops[number] > top else top
    weights = np.empty(logits.shape[0], np.float32)
    total = fill_weights(logits, tops, top, weights)
    wanted = min(np.int64(math.ceil(share * np.float64(total))), total)
    least = _least(logits.shape[0], top, total - wanted)
    floor = _nth(tops, CHUNKS, least) if tops.shape[0] > CHUNKS else least
    found = np.empty(logits.shape[0], np.int32)
    while True:
        num_found = gather(logits, tops, floor, found)
        values, masses = np.empty(num_found, np.float32), np.empty(num_found, np.int64)
        mass = np.int64(0)
        for place in range(num_found):
            values[place] = logits[found[place]]
            masses[place] = mass_of(weights[found[place]])
            mass += masses[place]
        if mass >= wanted or floor <= least:
            edge, equals = edge_of(values, masses, num_found, wanted)
            return _listed(logits, tops, edge, equals, places, listed), edge, equals
        floor = least


@entry
def _near(logits: Any, tops: Any, distance: Any, places: Any, listed: Any) -> Any:
    """Head of logits at most ``-distance`` below the largest."""
    top = np.float32(-np.inf)
    for number in range(tops.shape[0]):
        top = tops[number] if tops[number] > top else top
    edge = top
    for number in range(tops.shape[0]):
        if tops[number] - top >= distance:
            for place in range(number * CHUNK, min((number + 1) * CHUNK, logits.shape[0])):
                logit = logits[place]
                lower = (logit - top >= distance) & (logit < edge)
                edge = logit if lower else edge
    equals = logits.shape[0]
    return _listed(logits, tops, edge, equals, places, listed), edge, equals


@entry
def _banned(logits: Any, edge: Any, equals: Any, kept: Any, tops: Any) -> None:
    """All but a head are -inf in ``kept``; its tops into ``tops``."""
    missing = np.float32(-np.inf)
    for place in range(logits.shape[0]):
        kept[place] = logits[place] if logits[place] >= edge else missing
    if equals < logits.shape[0]:
        for place in range(logits.shape[0]):
            if logits[place] == edge:
                kept[place] = edge if equals > 0 else missing
                equals -= 1
    fill_tops(kept, tops)


def suits(candidates: Candidates) -> bool:
    """Whether the functions here can take them: float32 on a CPU."""
    logits = candidates.logits
    return logits.dtype is torch.float32 and logits.device.type == "cpu"


def row_of(candidates: Candidates) -> tuple[Floats, Floats]:
    """Logits (float32 [C]) and their tops, which are kept for whoever asks next."""
    logits = candidates.logits.contiguous().numpy()
    if candidates.tops is None:
        candidates.tops = tops_of(logits)
    return logits, candidates.tops


def leaders(candidates: Candidates, count: int, many: int = MANY) -> Candidates:
    """The ``count`` largest; banned ones are never among them."""
    return _kept(_leaders, candidates, count, many)


def nucleus(candidates: Candidates, share: float, many: int = MANY) -> Candidates:
    """The likeliest whose mass reaches ``share`` of all, the last included."""
    return _kept(_nucleus, candidates, share, many)


def near(candidates: Candidates, distance: float, many: int = MANY) -> Candidates:
    """Those whose difference to the largest, rounded to float32, is at least ``distance``."""
    return _kept(_near, candidates, np.float32(distance), many)


def _kept(find: Any, candidates: Candidates, bound: Any, many: int) -> Candidates:
    """A head of candidates: a list of at most ``many``, or all with the others banned."""
    logits, tops = row_of(candidates)
    places, listed = np.empty(many, np.int64), np.empty(many, np.float32)
    count, edge, equals = find(logits, tops, bound, places, listed)
    if count >= 0:
        found = torch.from_numpy(places[:count])
        ids = found if candidates.ids is None else candidates.ids[found]
        return Candidates(torch.from_numpy(listed[:count]), ids)
    row, row_tops = np.empty_like(logits), np.empty_like(tops)
    _banned(logits, np.float32(edge), equals, row, row_tops)
    return Candidates(torch.from_numpy(row), candidates.ids, tops=row_tops)


def compiled() -> None:
    """Compile what is not compiled yet."""
    some = Candidates(torch.from_numpy(np.zeros(2 * CHUNK, dtype=np.float32)))
    leaders(some, 1), nucleus(some, 0.5), near(some, 0.0, many=1)
