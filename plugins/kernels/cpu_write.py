"""Rotate queries and keys, and put keys and values in the cache: one pass over a step.

Rotary embedding in the half-split convention: dims i and i + n/2 of the first n =
``ROTARY`` dims turn together; dims from n on pass through. Elementwise, so a row's bits
depend on nothing but the row.
"""

from typing import Any

import numpy as np

from .cpu_cache_codes import keep_codes
from .cpu_jit import Task, inlined
from .cpu_lanes import fma, splat
from .cpu_memory import fetch, floats, longs, offset, put
from .cpu_words import (
    ANGLE_STEP,
    ANGLES,
    BLOCK_SIZE,
    DIMS,
    GROUP,
    KEY_SCALES,
    KEYS,
    KV_HEADS,
    NEW_KEY_STEP,
    NEW_KEYS,
    NEW_VALUE_STEP,
    NEW_VALUES,
    PANEL,
    QUERIES,
    QUERY_STEP,
    ROTARY,
    ROWS,
    SLOTS,
    VALUE_SCALES,
    VALUES,
)

ROWS_AN_ITEM = 16
ZERO = np.float32(0.0)


@inlined
def rotate(vector: Any, angles: Any, half: int) -> None:
    """Turn one head's vector in place."""
    for dim in range(0, half, 16):
        x = fetch(vector, dim, half)
        y = fetch(vector, half + dim, 2 * half)
        cosine = fetch(angles, dim, half)
        sine = fetch(angles, half + dim, 2 * half)
        put(vector, dim, half, fma(x, cosine, (splat(ZERO) - y) * sine))
        put(vector, half + dim, 2 * half, fma(y, cosine, x * sine))


@inlined
def keep(w: Any, slot: int, head: int, key: Any, value: Any) -> None:
    """Copy one head's key and value to their place in the cache."""
    size, dims, panel = w[BLOCK_SIZE], w[DIMS], w[PANEL]
    block = slot // size
    place = slot - block * size
    vector = (block * w[KV_HEADS] + head) * size
    first = vector * dims + place // panel * panel * dims + place % panel
    vector += place
    if w[KEY_SCALES] != 0:
        keep_codes(key, dims, w[KEYS] + first, panel, w[KEY_SCALES] + 4 * vector)
        keep_codes(value, dims, w[VALUES] + vector * dims, 1, w[VALUE_SCALES] + 4 * vector)
        return
    keys = floats(w[KEYS] + 4 * first)
    for dim in range(dims):
        keys[dim * panel] = key[dim]
    values = floats(w[VALUES] + 4 * vector * dims)
    for dim in range(0, dims, 16):
        put(values, dim, dims, fetch(value, dim, dims))


def _write(arguments: int, item: int, slot: int) -> None:
    """Do rows item * 16 .. item * 16 + 15."""
    w = longs(arguments)
    half, dims = w[ROTARY] // 2, w[DIMS]
    slots = longs(w[SLOTS])
    for row in range(item * ROWS_AN_ITEM, min(w[ROWS], (item + 1) * ROWS_AN_ITEM)):
        angles = floats(w[ANGLES] + 4 * row * w[ANGLE_STEP])
        queries = floats(w[QUERIES] + 4 * row * w[QUERY_STEP])
        for head in range(w[KV_HEADS] * w[GROUP]):
            rotate(offset(queries, head * dims), angles, half)
        keys = floats(w[NEW_KEYS] + 4 * row * w[NEW_KEY_STEP])
        values = floats(w[NEW_VALUES] + 4 * row * w[NEW_VALUE_STEP])
        for head in range(w[KV_HEADS]):
            key = offset(keys, head * dims)
            rotate(key, angles, half)
            keep(w, slots[row], head, key, offset(values, head * dims))


WRITE = Task(_write)
