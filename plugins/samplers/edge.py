"""The edge of a head: how far down an order a mass reaches, found without ordering.

Order is by logit, descending, of equals by place. Logits are sorted into buckets by their
distance from the largest; the one bucket in which the mass is reached is then looked at
alone, until it is small enough to order or holds nothing but equals.
"""

from typing import Any, Final

import numpy as np

from .jit import inner, part
from .lanes import CHUNK, lowest_bit, reaching

BUCKETS: Final = 256
FEW: Final = 24
"""So many are put in order."""
_ONE: Final = np.uint64(1)


@inner
def mask_of(logits: Any, number: Any, floor: Any) -> Any:
    """Which logits of chunk ``number`` reach ``floor``: a bit each (uint64)."""
    first = number * CHUNK
    if first + CHUNK <= logits.shape[0]:
        return reaching(logits, first, floor)
    mask = np.uint64(0)
    for place in range(logits.shape[0] - 1, first - 1, -1):
        mask = mask << _ONE | np.uint64(logits[place] >= floor)
    return mask


@part
def gather(logits: Any, tops: Any, floor: Any, found: Any) -> Any:
    """Places, ascending, of logits that reach ``floor``, into ``found``. :return: how many"""
    count = 0
    for number in range(tops.shape[0]):
        if tops[number] >= floor:
            mask = mask_of(logits, number, floor)
            while mask != 0:
                found[count] = number * CHUNK + lowest_bit(mask)
                count += 1
                mask &= mask - _ONE
    return count


@inner
def _bucketed(values: Any, masses: Any, count: Any, high: Any, scale: Any, room: Any) -> None:
    """The mass of each bucket into ``room``."""
    for bucket in range(BUCKETS):
        room[bucket] = 0
    for place in range(count):
        room[np.int64((high - np.float64(values[place])) * scale)] += masses[place]


@inner
def _kept_of(values: Any, masses: Any, count: Any, high: Any, scale: Any, bucket: Any) -> Any:
    """Move those of one bucket to the front. :return: how many"""
    kept = 0
    for place in range(count):
        value, mass = values[place], masses[place]
        inside = np.int64((high - np.float64(value)) * scale) == bucket
        values[kept], masses[kept] = value, mass
        kept += inside
    return kept


@inner
def _ordered_edge(values: Any, masses: Any, count: Any, above: Any, wanted: Any) -> Any:
    """Of few, or of equals: put in order, of equals the first before the others."""
    for place in range(1, count):
        value, mass, here = values[place], masses[place], place
        while here > 0 and values[here - 1] < value:
            values[here], masses[here] = values[here - 1], masses[here - 1]
            here -= 1
        values[here], masses[here] = value, mass
    edge, equals, place = values[0], 0, 0
    while place < count and (place == 0 or above < wanted):
        equals = equals + 1 if values[place] == edge else 1
        edge = values[place]
        above += masses[place]
        place += 1
    return edge, equals


@part
def edge_of(values: Any, masses: Any, count: Any, wanted: Any) -> Any:
    """The last of the shortest head whose masses reach ``wanted``; of all when none does.

    :param values: float32 [>= count], by ascending place; overwritten, as are ``masses``
    :param masses: int64, equal for equal values
    :return: its value, and how many of that value the head holds
    """
    room = np.empty(BUCKETS, np.int64)
    above = np.int64(0)
    while True:
        high, low = np.float64(values[0]), np.float64(values[0])
        for place in range(count):
            value = np.float64(values[place])
            high = value if value > high else high
            low = value if value < low else low
        if count <= FEW or high == low:
            return _ordered_edge(values, masses, count, above, wanted)
        scale = (BUCKETS - 0.5) / (high - low)
        _bucketed(values, masses, count, high, scale, room)
        bucket = np.int64((high - low) * scale)
        chosen = 0
        while chosen < bucket and above + room[chosen] < wanted:
            above += room[chosen]
            chosen += 1
        count = _kept_of(values, masses, count, high, scale, chosen)
