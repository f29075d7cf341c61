"""Softmax attention over the paged cache: the task of one (piece, KV head).

A piece is a run of rows of one sequence. Its query rows (positions times the query
heads of the KV head) go through the context together, 64 positions at a time, so that
each tile of keys and values is read once for all of them; blocks are read where they
lie. The softmax is the online one (Milakov and Gimelshein, arXiv 1805.02867).

A row's bits depend on its query and its positions alone: tiles start at multiples of
64 absolute positions, scores are chains over dims, outputs chains over positions
(``cpu_tiles``), and the sum of a tile is a fixed tree over its 64 places, absent ones
counting 0. A position outside a row's bounds is never multiplied into it.
"""

from typing import Any

import numpy as np

from .cpu_exp import exp_nonpositive
from .cpu_jit import Task, inlined
from .cpu_lanes import between, greatest, maximum, splat, total
from .cpu_memory import fetch, floats, ints, load, longs, offset, offset_longs, put, store
from .cpu_tiles import MAX_ROWS, score_tile, value_tile
from .cpu_words import (
    BLOCK_SIZE,
    CONTEXTS,
    DIMS,
    GROUP,
    KEYS,
    KV_HEADS,
    OUTPUT,
    PADDED,
    PIECE_ROWS,
    PIECES,
    QUERIES,
    QUERY_STEP,
    ROW_STARTS,
    SCALE,
    SCRATCH,
    SCRATCH_STEP,
    TABLE_STEP,
    TABLES,
    VALUES,
    WINDOW,
)

TILE = 64
SCORE_STEP = TILE + 16
"""Floats of a score row: a vector may start at the tile's last place."""
MINUS_INFINITY = np.float32(-np.inf)
ZERO = np.float32(0.0)


@inlined
def find_tile(
    w: Any, table: Any, head: int, start: int, first: int, end: int, keys: Any, v_rows: Any
) -> int:
    """Note where keys and values of positions first .. end - 1 lie, by place in the tile.

    Begins at a block's first position: a vector load of keys then never leaves a block
    whose size is a multiple of 16.

    :param start: position of the tile's place 0
    :param keys: (address, place) of each run of up to 16 positions of one block
    :param v_rows: address of each position's values
    :return: number of runs
    """
    dims, size = w[DIMS], w[BLOCK_SIZE]
    runs = 0
    position = max(start, first // size * size)
    while position < end:
        block = position // size
        skipped = position - block * size
        stop = min(end, position - skipped + size)
        base = 4 * (table[block] * w[KV_HEADS] + head) * dims * size
        for at in range(position, stop, 16):
            keys[2 * runs] = w[KEYS] + base + 4 * (skipped + at - position)
            keys[2 * runs + 1] = at - start
            runs += 1
        row = w[VALUES] + base + 4 * skipped * dims
        for at in range(position, stop):
            v_rows[at - start] = row + 4 * dims * (at - position)
        position = stop
    return runs


@inlined
def soften(scores: Any, first: int, end: int, state: Any, sums: Any, step: int) -> None:
    """Turn one row's scores of a tile into weights, and rescale what it has summed.

    :param state: the row's greatest score so far, and its sum of weights
    """
    low = splat(MINUS_INFINITY)
    s0 = between(load(scores, 0), first, end, low)
    s1 = between(load(scores, 16), first - 16, end - 16, low)
    s2 = between(load(scores, 32), first - 32, end - 32, low)
    s3 = between(load(scores, 48), first - 48, end - 48, low)
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
    store(scores, 0, s0)
    store(scores, 16, s1)
    store(scores, 32, s2)
    store(scores, 48, s3)
    state[1] += total((s0 + s1) + (s2 + s3))


@inlined
def take_queries(arguments: int, row: int, count: int, head: int, queries: Any) -> None:
    """Copy a piece's queries of one KV head, times the scale, to rows of scratch."""
    w = longs(arguments)
    group, dims, step = w[GROUP], w[DIMS], w[PADDED]
    scale = splat(floats(arguments + 8 * SCALE)[0])
    for position in range(count):
        source = floats(w[QUERIES] + 4 * (row + position) * w[QUERY_STEP])
        for index in range(group):
            for dim in range(0, step, 16):
                start = (head * group + index) * dims
                part = fetch(source, start + dim, start + dims)
                store(queries, (position * group + index) * step + dim, part * scale)


@inlined
def give_output(w: Any, row: int, count: int, head: int, sums: Any, states: Any) -> None:
    """Divide by the sums of weights; adding 0 makes a zero positive on every path."""
    group, dims, step = w[GROUP], w[DIMS], w[PADDED]
    heads = w[KV_HEADS] * group
    for position in range(count):
        target = floats(w[OUTPUT] + 4 * (row + position) * heads * dims)
        for index in range(group):
            local = position * group + index
            weight = splat(states[2 * local + 1])
            for dim in range(0, step, 16):
                start = (head * group + index) * dims
                value = load(sums, local * step + dim) / weight + splat(ZERO)
                put(target, start + dim, start + dims, value)


@inlined
def begin(w: Any, position: int, rows: int, positions: Any, states: Any, sums: Any) -> None:
    """Nothing seen yet: each row's position, greatest score, weight and sums."""
    for local in range(rows):
        positions[local] = position + local // w[GROUP]
        states[2 * local] = MINUS_INFINITY
        states[2 * local + 1] = ZERO
    for place in range(0, rows * w[PADDED], 16):
        store(sums, place, splat(ZERO))


@inlined
def bounds(position: int, window: int, start: int) -> tuple[int, int]:
    """Places of the tile at ``start`` that the row at ``position`` sees: first, end."""
    first = position + 1 - window if window > 0 else 0
    return min(max(first - start, 0), TILE), min(max(position + 1 - start, 0), TILE)


@inlined
def weigh(
    w: Any, start: int, rows: int, positions: Any, scores: Any, v_rows: Any, states: Any, sums: Any
) -> None:
    """Softmax and values of up to six rows on one tile, whose scores are there.

    Each row sums the places that it sees in ascending order. Those that all rows see
    are summed by all together; what a row sees before and after that, by itself.
    """
    window, step = w[WINDOW], w[PADDED]
    shared_first, _ = bounds(positions[rows - 1], window, start)
    _, shared_end = bounds(positions[0], window, start)
    shared_end = max(shared_end, shared_first)
    for r in range(rows):
        first, end = bounds(positions[r], window, start)
        if end > first:
            soften(
                offset(scores, r * SCORE_STEP), first, end,
                offset(states, 2 * r), offset(sums, r * step), step,
            )  # fmt: skip
    for part in range(2 * rows + 1):
        count, r = (rows, 0) if part == rows else (1, part if part < rows else part - rows - 1)
        first, end = bounds(positions[r], window, start)
        if part < rows:
            end = min(end, shared_first)
        elif part == rows:
            first, end = shared_first, shared_end
        else:
            first = shared_end
        if end > first:
            value_tile(
                count, offset(scores, r * SCORE_STEP), SCORE_STEP, v_rows, first, end,
                offset(sums, r * step), step,
            )  # fmt: skip


def _attend(arguments: int, item: int, slot: int) -> None:
    """Attend with the rows of piece ``item // KV_HEADS``, KV head ``item % KV_HEADS``."""
    w = longs(arguments)
    piece = longs(w[PIECES] + 24 * (item // w[KV_HEADS]))
    head = item % w[KV_HEADS]
    sequence, row, count = piece[0], piece[1], piece[2]
    position = ints(w[CONTEXTS])[sequence] - ints(w[ROW_STARTS])[sequence + 1] + row
    table = ints(w[TABLES] + 4 * sequence * w[TABLE_STEP])

    rows, step, limit = count * w[GROUP], w[PADDED], w[PIECE_ROWS]
    v_rows = longs(w[SCRATCH] + slot * w[SCRATCH_STEP])
    keys = longs(w[SCRATCH] + slot * w[SCRATCH_STEP] + 8 * TILE)
    positions = longs(w[SCRATCH] + slot * w[SCRATCH_STEP] + 24 * TILE)
    states = floats(w[SCRATCH] + slot * w[SCRATCH_STEP] + 24 * TILE + 8 * limit)
    scores = offset(states, 2 * limit)
    sums = offset(scores, limit * SCORE_STEP)
    queries = offset(sums, limit * step)
    take_queries(arguments, row, count, head, queries)
    begin(w, position, rows, positions, states, sums)

    end = position + count
    first = max(0, position + 1 - w[WINDOW]) if w[WINDOW] > 0 else 0
    for start in range(first // TILE * TILE, end, TILE):
        runs = find_tile(w, table, head, start, first, min(end, start + TILE), keys, v_rows)
        for r in range(0, rows, MAX_ROWS):
            some = min(MAX_ROWS, rows - r)
            if positions[r + some - 1] < start:
                continue
            for run in range(runs):
                score_tile(
                    some, offset(queries, r * step), step, w[DIMS], floats(keys[2 * run]),
                    w[BLOCK_SIZE], offset(scores, r * SCORE_STEP + keys[2 * run + 1]), SCORE_STEP,
                )  # fmt: skip
        for r in range(0, rows, MAX_ROWS):
            some = min(MAX_ROWS, rows - r)
            if positions[r + some - 1] < start:
                continue
            weigh(
                w, start, some, offset_longs(positions, r), offset(scores, r * SCORE_STEP), v_rows,
                offset(states, 2 * r), offset(sums, r * step),
            )  # fmt: skip
    give_output(w, row, count, head, sums, states)


ATTEND = Task(_attend)
