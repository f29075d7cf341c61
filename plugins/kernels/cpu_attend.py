"""Softmax attention over the paged cache: the task of one (piece, KV head).

A piece is a run of rows of one sequence, with all of their context or with one of the
parts that it is shared out into. Its query rows (positions times the query heads of the
KV head) go through the context together, 64 positions at a time, so that each tile of
keys and values is read once for all of them; blocks are read where they lie.

A row's bits depend on its query and its positions alone: tiles start at multiples of
64 absolute positions, scores are chains over dims, outputs chains over positions
(``cpu_tiles``), and the sum of a tile is a fixed tree over its 64 places, absent ones
counting 0. Ranges of 512 absolute positions are summed by themselves and merged in
their order, by one thread or, in parts, by whoever did the last of them. A position
outside a row's bounds is never multiplied into it.
"""

from typing import Any

import numpy as np

from .cpu_atomics import add, write
from .cpu_cache_codes import widen
from .cpu_jit import Task, inlined
from .cpu_lanes import splat
from .cpu_memory import floats, ints, load, longs, offset, put
from .cpu_products import MAX_ROWS
from .cpu_softmax import SCORE_STEP, TILE, clear, merge
from .cpu_tiles import score_codes, score_tile
from .cpu_weigh import weigh
from .cpu_words import (
    BLOCK_SIZE,
    CONTEXTS,
    COUNTERS,
    DIMS,
    ELEMENT,
    FIRST_PART,
    FIRST_ROW,
    GROUP,
    KEY_SCALES,
    KEYS,
    KV_HEADS,
    NUM_ROWS,
    OUTPUT,
    PADDED,
    PANEL,
    PART,
    PARTIALS,
    PARTS,
    PIECE_ROWS,
    PIECE_WORDS,
    PIECES,
    QUERIES,
    QUERY_STEP,
    RANGE,
    ROW_STARTS,
    SCALE,
    SCRATCH,
    SCRATCH_STEP,
    SEQUENCE,
    STATES,
    TABLE_STEP,
    TABLES,
    VALUE_SCALES,
    VALUES,
    WINDOW,
)

ZERO = np.float32(0.0)
V_ROWS, RUNS, FLOATS = 0, TILE, 3 * TILE
"""Scratch of a thread in 64-bit words: addresses of values, runs of keys, then floats."""


def tile_bytes(dims: int, padded: int) -> int:
    """Scratch for one tile: where it lies, scores, scales, and keys and values that are
    widened from codes; rounded up to a cache line."""
    numbers = MAX_ROWS * SCORE_STEP + 2 * TILE + TILE * (dims + padded) + 16
    return -(-(8 * FLOATS + 4 * numbers) // 64) * 64


def rows_bytes(rows: int, dims: int, padded: int) -> int:
    """Scratch for ``rows`` query rows: two states and sums of each, and the queries."""
    panels = -(-rows // MAX_ROWS) * MAX_ROWS * dims
    return -(-4 * (2 * rows * (2 + padded) + panels) // 64) * 64


@inlined
def find_tile(
    w: Any, table: Any, head: int, start: int, first: int, end: int, keys: Any, v_rows: Any,
    scales: Any,
) -> int:  # fmt: skip
    """Note where keys and values of positions first .. end - 1 lie, by place in the tile.

    Begins at a block's first position: a vector load of keys then never leaves a block
    whose size is a multiple of 16.

    :param start: position of the tile's place 0
    :param keys: (address, place) of each run of up to 16 positions of one block
    :param v_rows: address of each position's values
    :param scales: with int8, of 64 keys, then of 64 values
    :return: number of runs
    """
    dims, size, wide = w[DIMS], w[BLOCK_SIZE], w[ELEMENT]
    ahead = dims if w[PANEL] != size else 1
    runs = 0
    position = max(start, first // size * size)
    while position < end:
        block = position // size
        skipped = position - block * size
        stop = min(end, position - skipped + size)
        vector = (table[block] * w[KV_HEADS] + head) * size
        base = w[KEYS] + wide * vector * dims
        for at in range(position, stop, 16):
            keys[2 * runs] = base + wide * (skipped + at - position) * ahead
            keys[2 * runs + 1] = at - start
            runs += 1
        vector += skipped
        row = w[VALUES] + wide * vector * dims
        for at in range(position, stop):
            v_rows[at - start] = row + wide * dims * (at - position)
        if w[KEY_SCALES] != 0:
            of_keys = floats(w[KEY_SCALES] + 4 * vector)
            of_values = floats(w[VALUE_SCALES] + 4 * vector)
            for at in range(stop - position):
                scales[position - start + at] = of_keys[at]
                scales[TILE + position - start + at] = of_values[at]
        position = stop
    return runs


@inlined
def take_queries(w: Any, row: int, count: int, head: int, scale: Any, queries: Any) -> None:
    """Copy a piece's queries of one KV head, times the scale: panels [dims, MAX_ROWS]."""
    group, dims = w[GROUP], w[DIMS]
    for position in range(count):
        source = floats(w[QUERIES] + 4 * (row + position) * w[QUERY_STEP])
        for index in range(group):
            local = position * group + index
            panel = local // MAX_ROWS * MAX_ROWS * dims + local % MAX_ROWS
            first = (head * group + index) * dims
            for dim in range(dims):
                queries[panel + dim * MAX_ROWS] = source[first + dim] * scale


@inlined
def give_output(w: Any, row: int, count: int, head: int, states: Any, sums: Any) -> None:
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
def take_range(
    arguments: int, scratch: int, piece: Any, head: int, start: int, queries: Any, states: Any,
    sums: Any,
) -> None:  # fmt: skip
    """What a piece's rows find in the range of positions from ``start`` on."""
    w = longs(arguments)
    rows, step, dims = piece[NUM_ROWS] * w[GROUP], w[PADDED], w[DIMS]
    table = ints(w[TABLES] + 4 * piece[SEQUENCE] * w[TABLE_STEP])
    position = position_of(w, piece)
    v_rows, keys = longs(scratch + 8 * V_ROWS), longs(scratch + 8 * RUNS)
    scores = floats(scratch + 8 * FLOATS)
    scales = offset(scores, MAX_ROWS * SCORE_STEP)
    space = scratch + 8 * FLOATS + 4 * (MAX_ROWS * SCORE_STEP + 2 * TILE)
    cap = floats(arguments + 8 * SCALE)[1]
    clear(states, sums, rows, step)
    end = min(position + piece[NUM_ROWS], start + RANGE)
    first = max(start, position + 1 - w[WINDOW]) if w[WINDOW] > 0 else start
    for tile in range(first // TILE * TILE, end, TILE):
        stop = min(end, tile + TILE)
        runs = find_tile(w, table, head, tile, first, stop, keys, v_rows, scales)
        panel, narrow = w[PANEL], w[ELEMENT] == 1
        if narrow and rows > MAX_ROWS and runs <= TILE // 16:
            widen(panel, dims, step, runs, keys, v_rows, max(first - tile, 0), stop - tile, space)
            panel, narrow = 16, False
        for row in range(0, rows, MAX_ROWS):
            some = min(MAX_ROWS, rows - row)
            if position + (row + some - 1) // w[GROUP] >= tile:
                panels = offset(queries, row * dims)
                if narrow:
                    score_codes(some, panels, dims, keys, runs, panel, scores, SCORE_STEP)
                else:
                    score_tile(some, panels, dims, keys, runs, panel, scores, SCORE_STEP)
                weigh(
                    w, tile, position, row, some, scores, v_rows, offset(states, 2 * row),
                    offset(sums, row * step), scales, cap, narrow,
                )  # fmt: skip


@inlined
def position_of(w: Any, piece: Any) -> int:
    """The position of a piece's first row."""
    sequence = piece[SEQUENCE]
    position: int = ints(w[CONTEXTS])[sequence] - ints(w[ROW_STARTS])[sequence + 1]
    return position + int(piece[FIRST_ROW])


def _attend(arguments: int, item: int, slot: int) -> None:
    """Attend with piece ``item // KV_HEADS``, KV head ``item % KV_HEADS``."""
    w = longs(arguments)
    piece = longs(w[PIECES] + 8 * PIECE_WORDS * (item // w[KV_HEADS]))
    head = item % w[KV_HEADS]
    row, count = piece[FIRST_ROW], piece[NUM_ROWS]
    rows, step = count * w[GROUP], w[PADDED]
    position = position_of(w, piece)
    scratch = w[SCRATCH] + slot * w[SCRATCH_STEP]
    states = floats(scratch + w[STATES])
    sums = offset(states, 2 * rows)
    more = offset(sums, rows * step)
    added = offset(more, 2 * rows)
    queries = offset(added, rows * step)
    space = floats(scratch + 8 * FLOATS)
    take_queries(w, row, count, head, floats(arguments + 8 * SCALE)[0], queries)

    start = max(0, position + 1 - w[WINDOW]) // RANGE * RANGE if w[WINDOW] > 0 else 0
    if piece[PARTS] == 0:
        take_range(arguments, scratch, piece, head, start, queries, states, sums)
        for later in range(start + RANGE, position + count, RANGE):
            take_range(arguments, scratch, piece, head, later, queries, more, added)
            merge(states, sums, more, added, rows, step, space)
        give_output(w, row, count, head, states, sums)
        return
    size = w[PIECE_ROWS] * (2 + step)
    first = floats(w[PARTIALS] + 4 * size * (piece[FIRST_PART] * w[KV_HEADS] + head))
    part = offset(first, piece[PART] * w[KV_HEADS] * size)
    start += piece[PART] * RANGE
    take_range(arguments, scratch, piece, head, start, queries, part, offset(part, 2 * rows))
    counter = w[COUNTERS] + 8 * (piece[FIRST_PART] * w[KV_HEADS] + head)
    if add(counter, 1) + 1 == piece[PARTS]:
        write(counter, 0)
        for number in range(1, piece[PARTS]):
            part = offset(first, number * w[KV_HEADS] * size)
            merge(first, offset(first, 2 * rows), part, offset(part, 2 * rows), rows, step, space)
        give_output(w, row, count, head, first, offset(first, 2 * rows))


ATTEND = Task(_attend)
