"""The online softmax of attention rows (Milakov and Gimelshein, arXiv 1805.02867).

A row's state is the greatest score that it has seen and the sum of its weights, beside
its sums of weighted values. A row that has seen nothing has the weight 0, and none that
has seen anything does.
"""

from typing import Any

import numpy as np

from .cpu_exp import exp_nonpositive
from .cpu_jit import inlined
from .cpu_lanes import between, greatest, maximum, splat, total
from .cpu_memory import load, store
from .cpu_tanh import tanh

TILE = 64
SCORE_STEP = TILE + 16
"""Floats of a score row: a vector may start at the tile's last place."""
MINUS_INFINITY = np.float32(-np.inf)
ZERO = np.float32(0.0)


@inlined
def clear(states: Any, sums: Any, rows: int, step: int) -> None:
    """Nothing seen yet."""
    for row in range(rows):
        states[2 * row] = MINUS_INFINITY
        states[2 * row + 1] = ZERO
    for place in range(0, rows * step, 16):
        store(sums, place, splat(ZERO))


@inlined
def refine(score: Any, scales: Any, place: int, codes: int, cap: Any) -> Any:
    """Scores of int8 keys under their scales, and all below the cap."""
    if codes:
        score = score * load(scales, place)
    if cap > ZERO:
        score = tanh(score) * splat(cap)
    return score


@inlined
def soften(
    scores: Any, first: int, end: int, state: Any, sums: Any, step: int, scales: Any, codes: int,
    cap: Any,
) -> None:  # fmt: skip
    """Turn one row's scores of a tile into weights, and rescale what it has summed.

    :param scores: 64; those outside first .. end - 1 do not count, whatever they are
    :param state: the row's greatest score so far, and its sum of weights
    :param scales: with ``codes``, of 64 keys, then of 64 values
    """
    s0 = refine(load(scores, 0), scales, 0, codes, cap)
    s1 = refine(load(scores, 16), scales, 16, codes, cap)
    s2 = refine(load(scores, 32), scales, 32, codes, cap)
    s3 = refine(load(scores, 48), scales, 48, codes, cap)
    if end - first < TILE:
        low = splat(MINUS_INFINITY)
        s0 = between(s0, first, end, low)
        s1 = between(s1, first - 16, end - 16, low)
        s2 = between(s2, first - 32, end - 32, low)
        s3 = between(s3, first - 48, end - 48, low)
    top = greatest(maximum(maximum(s0, s1), maximum(s2, s3)))
    best = state[0]
    if top > best:
        factor = exp_nonpositive(splat(best - top))
        store(scores, 0, factor)
        state[0] = top
        state[1] *= scores[0]
        for dim in range(0, step, 16):
            store(sums, dim, load(sums, dim) * factor)
        best = top
    s0 = exp_nonpositive(s0 - splat(best))
    s1 = exp_nonpositive(s1 - splat(best))
    s2 = exp_nonpositive(s2 - splat(best))
    s3 = exp_nonpositive(s3 - splat(best))
    state[1] += total((s0 + s1) + (s2 + s3))
    if codes:
        s0, s1 = s0 * load(scales, TILE), s1 * load(scales, TILE + 16)
        s2, s3 = s2 * load(scales, TILE + 32), s3 * load(scales, TILE + 48)
    store(scores, 0, s0)
    store(scores, 16, s1)
    store(scores, 32, s2)
    store(scores, 48, s3)


@inlined
def merge(states: Any, sums: Any, more: Any, added: Any, rows: int, step: int, space: Any) -> None:
    """Add to each row what it found in a later range of its context.

    :param more: states of that range, whose sums ``added`` are
    :param space: 32 floats
    """
    for row in range(rows):
        weight, seen = states[2 * row + 1], more[2 * row + 1]
        if seen != ZERO:
            top = max(states[2 * row], more[2 * row])
            old, new = splat(ZERO), splat(np.float32(1.0))
            if weight != ZERO:
                old = exp_nonpositive(splat(states[2 * row] - top))
                new = exp_nonpositive(splat(more[2 * row] - top))
            store(space, 0, old)
            store(space, 16, new)
            states[2 * row] = top
            states[2 * row + 1] = weight * space[0] + seen * space[16]
            for dim in range(row * step, (row + 1) * step, 16):
                store(sums, dim, load(sums, dim) * old + load(added, dim) * new)
