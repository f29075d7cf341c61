"""Block tables of a step, kept from one step to the next: few of them change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .rows import Row


class Tables:
    """What ``Batch.tables`` is made of."""

    def __init__(self) -> None:
        self.last: list[int] = []
        """The last block in use, of each row of the last tables."""
        self._rows: list[Row] = []
        self._array = np.zeros((0, 0), dtype=np.int32)
        self._states: list[tuple[int, int]] = []
        """Of each row of the last tables: changes until then, and entries in use."""

    def fill(self, rows: list[Row], used: list[int]) -> np.ndarray:
        """int32 [S, W]: the first ``used`` entries of each row's table, the rest 0.

        The same array as last time when nothing has changed, else a new one: nobody's
        batch changes under its hands.
        """
        width, states = max(used), [(row.changes, n) for row, n in zip(rows, used, strict=True)]
        same = width == self._array.shape[1] and rows == self._rows
        if same and states == self._states:
            return self._array
        array = self._array.copy() if same else np.zeros((len(rows), width), dtype=np.int32)
        last = self.last if same else [0] * len(rows)
        before = self._states if same else [(-1, 0)] * len(rows)
        for number, (state, known) in enumerate(zip(states, before, strict=True)):
            if state != known:
                filled = state[1]
                array[number, :filled] = rows[number].table[:filled]
                array[number, filled:] = 0
                last[number] = int(array[number, filled - 1])
        self._array, self._rows, self._states, self.last = array, rows, states, last
        return array
