"""The ``embedding`` op on the CPU: rows of a table, by their numbers."""

import torch

from .cpu_jit import Entry
from .cpu_memory import floats, longs
from .cpu_rows import row_step


def _lookup(ids: int, rows: int, table: int, step: int, size: int, known: int, out: int) -> int:
    """Copy rows; of numbers that the table does not have nothing is read.

    :return: the first place with such a number, or -1
    """
    numbers, written = longs(ids), floats(out)
    for row in range(rows):
        if numbers[row] < 0 or numbers[row] >= known:
            return row
        source = floats(table + 4 * numbers[row] * step)
        for column in range(size):
            written[row * size + column] = source[column]
    return -1


LOOKUP = Entry(_lookup, nogil=False)


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows ``ids`` (int64 [T]) of ``weight`` (float32 [V, H]): a new tensor.

    :raises IndexError: an id that is no row; names both
    :raises ValueError: another type or shape
    """
    known, size = weight.shape
    step = row_step("weight", weight, known, size)
    if ids.dtype is not torch.int64 or ids.dim() != 1 or not ids.is_contiguous():
        msg = f"ids are {ids.dtype} {list(ids.shape)}; need torch.int64 [T], contiguous"
        raise ValueError(msg)
    rows = ids.shape[0]
    out = torch.empty((rows, size))
    place = LOOKUP.call(ids.data_ptr(), rows, weight.data_ptr(), step, size, known, out.data_ptr())
    if place >= 0:
        msg = f"ids[{place}] is {int(ids[place])}; the table has {known} rows"
        raise IndexError(msg)
    return out
