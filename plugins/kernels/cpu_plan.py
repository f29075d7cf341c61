"""What attention needs to know of a step, made once for all layers: its pieces.

A piece is a run of rows of one sequence that one item of work computes. Pieces with
more than the mean amount of work come first, so that none of them is left for the end.
Block ids and slots are checked here, because compiled code reads memory by them.
"""

from typing import Any

from .cpu_jit import Entry, inlined
from .cpu_memory import ints, longs
from .cpu_words import (
    BLOCK_SIZE,
    CONTEXTS,
    PIECES,
    ROW_STARTS,
    SLOTS,
    TABLE_STEP,
    TABLES,
    WINDOW,
)


@inlined
def seen(position: int, count: int, window: int) -> int:
    """Positions that ``count`` rows from ``position`` on see, as a measure of work."""
    context = position + count
    return count * (min(context, window + count) if window > 0 else context)


@inlined
def sound(w: Any, sequence: int, num_blocks: int, width: int) -> bool:
    """Whether a sequence's rows, context, table and slots fit together."""
    starts, slots, size = ints(w[ROW_STARTS]), longs(w[SLOTS]), w[BLOCK_SIZE]
    context = ints(w[CONTEXTS])[sequence]
    first, last = starts[sequence], starts[sequence + 1]
    if last < first or context < last - first or context > width * size:
        return False
    table = ints(w[TABLES] + 4 * sequence * w[TABLE_STEP])
    for number in range((context + size - 1) // size):
        if table[number] < 0 or table[number] >= num_blocks:
            return False
    position = context - (last - first)
    for row in range(first, last):
        if slots[row] != table[position // size] * size + position % size:
            return False
        position += 1
    return True


def _divide(
    arguments: int, sequences: int, width: int, num_blocks: int, piece_rows: int
) -> tuple[int, int]:
    """Check a step and cut it into pieces.

    :param width: entries of a block table
    :param piece_rows: rows of a piece at most
    :return: (pieces, positions seen by all rows), or (-1, sequence) for a bad one
    """
    w = longs(arguments)
    starts, contexts = ints(w[ROW_STARTS]), ints(w[CONTEXTS])
    pieces = longs(w[PIECES])
    work, number = 0, 0
    for sequence in range(sequences):
        if not sound(w, sequence, num_blocks, width):
            return -1, sequence
        position = contexts[sequence] - (starts[sequence + 1] - starts[sequence])
        for row in range(0, starts[sequence + 1] - starts[sequence], piece_rows):
            count = min(piece_rows, starts[sequence + 1] - starts[sequence] - row)
            work += seen(position + row, count, w[WINDOW])
            number += 1
    mean = work // max(number, 1)
    filled = 0
    for light in range(2):
        for sequence in range(sequences):
            first, last = starts[sequence], starts[sequence + 1]
            for row in range(first, last, piece_rows):
                count = min(piece_rows, last - row)
                position = contexts[sequence] - (last - row)
                if (seen(position, count, w[WINDOW]) < mean) == (light == 1):
                    pieces[3 * filled] = sequence
                    pieces[3 * filled + 1] = row
                    pieces[3 * filled + 2] = count
                    filled += 1
    return number, work


DIVIDE = Entry(_divide, nogil=False)
