"""Batches of steps that decode, in memory that stays where it is.

A model's weights empty the processor's caches in every step, so what comes before and
after costs by the different code it runs and the memory it touches. Such a step is a few
assignments to arrays that were there before; its tensors are made once.
"""

from __future__ import annotations

import numpy as np
import torch

from .batch import Batch


class DecodeStep:
    """The batch of S sequences with one row each."""

    def __init__(self, num_sequences: int, block_size: int, device: str) -> None:
        self._block_size = block_size
        self._device = device
        self._ids = np.zeros(num_sequences, dtype=np.int64)
        self._positions = np.zeros(num_sequences, dtype=np.int64)
        self._contexts = np.zeros(num_sequences, dtype=np.int32)
        self._slots = np.zeros(num_sequences, dtype=np.int64)
        self._tables = np.zeros((0, 0), dtype=np.int32)
        numbers = np.arange(num_sequences + 1)
        self._row_starts = torch.from_numpy(numbers.astype(np.int32)).to(device)
        self._logit_rows = torch.from_numpy(numbers[:-1]).to(device)
        self._batch: Batch | None = None

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Those that are kept between steps."""
        return (
            (self._row_starts, self._logit_rows) if self._batch is None else self._batch.tensors()
        )

    def batch(
        self, ids: list[int], positions: list[int], tables: np.ndarray, last: list[int]
    ) -> Batch:
        """The batch, which the next call changes.

        :param tables: int32 [S, W]; another array when an entry has changed
        :param last: the block in which each position lies
        """
        size = self._block_size
        self._ids[:] = ids
        self._positions[:] = positions
        self._contexts[:] = [position + 1 for position in positions]
        self._slots[:] = [
            block * size + position % size for block, position in zip(last, positions, strict=True)
        ]
        if self._batch is None or self._device != "cpu" or tables is not self._tables:
            self._tables = tables
            self._batch = Batch(
                token_ids=self._placed(self._ids),
                positions=self._placed(self._positions),
                row_starts=self._row_starts,
                contexts=self._placed(self._contexts),
                tables=self._placed(tables),
                slots=self._placed(self._slots),
                logit_rows=self._logit_rows,
                block_size=size,
            )
        return self._batch

    def _placed(self, array: np.ndarray) -> torch.Tensor:
        """On the CPU the array's own memory."""
        tensor = torch.from_numpy(array)
        return tensor if self._device == "cpu" else tensor.to(self._device, non_blocking=True)
