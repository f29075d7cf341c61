"""Entries of a row by token id, as quickly as its device allows.

On the CPU they are NumPy's: for a few entries torch spends ten times as long on the way
to them as with them. Both understand the same indexing, so that an edit is written once.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from enginebay.flow import TokenIds

Places = npt.NDArray[np.int64]
_REMEMBERED: Final = 256
"""Lists of token ids: of about as many requests as run at once."""


def array_of(row: torch.Tensor) -> Any:
    """A row (float32 [V]) to read and write by index: its NumPy view, or itself."""
    return row.numpy() if row.device.type == "cpu" else row


def places(row: torch.Tensor, token_ids: Iterable[int] | Places) -> Any:
    """The index of token ids in ``array_of(row)``."""
    if not isinstance(token_ids, np.ndarray):
        token_ids = np.fromiter(token_ids, np.int64)
    return token_ids if row.device.type == "cpu" else torch.from_numpy(token_ids).to(row.device)


def numbers(row: torch.Tensor, values: npt.NDArray[np.float32]) -> Any:
    """Values (float32) to put into ``array_of(row)``."""
    return values if row.device.type == "cpu" else torch.from_numpy(values).to(row.device)


@lru_cache(maxsize=_REMEMBERED)
def distinct(token_ids: TokenIds) -> tuple[frozenset[int], Places]:
    """Token ids, each once: as a set, and in an array. Remembered, for each step asks anew."""
    once = frozenset(token_ids)
    return once, np.fromiter(once, np.int64, len(once))
