"""What attention needs to know of a step, made once for all layers: its pieces.

A piece is a run of rows of one sequence that one item of work computes, with all of its
context or, when that is a large share of the step, with one range of it. Pieces with
much work come first, so that none of them is left for the end. Block ids and slots are
checked here, because compiled code reads memory by them.
"""

from typing import Any

from .cpu_jit import Entry, inlined
from .cpu_memory import ints, longs
from .cpu_words import (
    BLOCK_SIZE,
    CONTEXTS,
    FIRST_PART,
    FIRST_ROW,
    NUM_ROWS,
    PART,
    PARTS,
    PIECE_WORDS,
    PIECES,
    RANGE,
    ROW_STARTS,
    SEQUENCE,
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


@inlined
def parts_of(w: Any, position: int, count: int, most: int) -> int:
    """Into how many ranges the context of ``count`` rows is shared out; 0: into none."""
    window = w[WINDOW]
    first = max(0, position + 1 - window) // RANGE if window > 0 else 0
    ranges = (position + count + RANGE - 1) // RANGE - first
    return ranges if ranges > 1 and seen(position, count, window) > most else 0


@inlined
def fill(piece: Any, sequence: int, row: int, count: int, parts: int, number: int) -> None:
    """Enter a piece, or one of its parts for each range; ``number`` of parts came before."""
    for part in range(max(parts, 1)):
        at = part * PIECE_WORDS
        piece[at + SEQUENCE] = sequence
        piece[at + FIRST_ROW] = row
        piece[at + NUM_ROWS] = count
        piece[at + PARTS] = parts
        piece[at + PART] = part
        piece[at + FIRST_PART] = number


def _measure(
    arguments: int, sequences: int, width: int, num_blocks: int, piece_rows: int
) -> tuple[int, int]:
    """Check a step.

    :param width: entries of a block table
    :param piece_rows: rows of a piece at most
    :return: (pieces, positions seen by all rows), or (-1, sequence) for a bad one
    """
    w = longs(arguments)
    starts, contexts = ints(w[ROW_STARTS]), ints(w[CONTEXTS])
    work, number = 0, 0
    for sequence in range(sequences):
        if not sound(w, sequence, num_blocks, width):
            return -1, sequence
        rows = starts[sequence + 1] - starts[sequence]
        work += seen(contexts[sequence] - rows, rows, w[WINDOW])
        number += (rows + piece_rows - 1) // piece_rows
    return number, work


def _divide(
    arguments: int, sequences: int, piece_rows: int, most: int, mean: int, room: int
) -> tuple[int, int]:
    """Cut a step into pieces; those that see more than ``most`` go in parts.

    :param mean: pieces that see less come last
    :param room: entries of the list of pieces; with fewer than needed none is written
    :return: (entries of the list, parts)
    """
    w = longs(arguments)
    starts, contexts = ints(w[ROW_STARTS]), ints(w[CONTEXTS])
    entries, total = 0, 0
    for sequence in range(sequences):
        first, last = starts[sequence], starts[sequence + 1]
        for row in range(first, last, piece_rows):
            count = min(piece_rows, last - row)
            parts = parts_of(w, contexts[sequence] - (last - row), count, most)
            entries += max(parts, 1)
            total += parts
    if entries > room:
        return entries, total
    filled, number = 0, 0
    for light in range(2):
        for sequence in range(sequences):
            first, last = starts[sequence], starts[sequence + 1]
            for row in range(first, last, piece_rows):
                count = min(piece_rows, last - row)
                position = contexts[sequence] - (last - row)
                if (seen(position, count, w[WINDOW]) < mean) == (light == 1):
                    parts = parts_of(w, position, count, most)
                    piece = longs(w[PIECES] + 8 * PIECE_WORDS * filled)
                    fill(piece, sequence, row, count, parts, number)
                    filled += max(parts, 1)
                    number += parts
    return entries, total


MEASURE = Entry(_measure, nogil=False)
DIVIDE = Entry(_divide, nogil=False)
