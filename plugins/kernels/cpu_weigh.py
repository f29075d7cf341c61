"""One tile of attention for up to six rows: their scores become weights, and weigh values."""

from typing import Any

from .cpu_jit import inlined
from .cpu_memory import offset
from .cpu_softmax import SCORE_STEP, TILE, soften
from .cpu_tiles import value_codes, value_tile
from .cpu_words import GROUP, KEY_SCALES, PADDED, WINDOW


@inlined
def bounds(position: int, window: int, start: int) -> tuple[int, int]:
    """Places of the tile at ``start`` that the row at ``position`` sees: first, end."""
    first = position + 1 - window if window > 0 else 0
    return min(max(first - start, 0), TILE), min(max(position + 1 - start, 0), TILE)


@inlined
def mix(
    count: int, scores: Any, v_rows: Any, first: int, end: int, sums: Any, step: int, narrow: bool
) -> None:
    """Add the values of places first .. end - 1 to ``count`` rows, under their weights."""
    if end > first:
        if narrow:
            value_codes(count, scores, SCORE_STEP, v_rows, first, end, sums, step)
        else:
            value_tile(count, scores, SCORE_STEP, v_rows, first, end, sums, step)


@inlined
def weigh(
    w: Any, start: int, position: int, row: int, rows: int, scores: Any, v_rows: Any, states: Any,
    sums: Any, scales: Any, cap: Any, narrow: bool,
) -> None:  # fmt: skip
    """Add a tile to up to MAX_ROWS rows, from ``row`` on of the piece at ``position``.

    What all of them see goes through one tile; what only some of them see (a window's
    edge, the diagonal) through tiles of one row, in the same order of positions.

    :param narrow: values are codes in memory still
    """
    window, step, group = w[WINDOW], w[PADDED], w[GROUP]
    codes = w[KEY_SCALES] != 0
    shared_first, last_end = bounds(position + (row + rows - 1) // group, window, start)
    _, shared_end = bounds(position + row // group, window, start)
    shared_end = max(shared_end, shared_first)
    for part in range(2 * rows + 1):
        r = part if part < rows else part - rows - 1
        count = 1
        if part == rows:
            r, count, first, end = 0, rows, shared_first, shared_end
        else:
            first, end = bounds(position + (row + r) // group, window, start)
        own, ours = offset(scores, r * SCORE_STEP), offset(sums, r * step)
        if part < rows:
            if end > first:
                soften(own, first, end, offset(states, 2 * r), ours, step, scales, codes, cap)
            end = min(end, shared_first)
        elif part > rows:
            if last_end <= shared_end:
                return
            first = max(first, shared_end)
        mix(count, own, v_rows, first, end, ours, step, narrow)
