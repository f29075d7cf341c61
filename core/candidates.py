"""The tokens still in play for one draw, with their logits."""

from __future__ import annotations

import numpy as np
import torch

_GROUPS = 512
"""At least so many groups: of few, the search for their maxima runs in short strides."""


def first_best(logits: torch.Tensor) -> torch.Tensor:
    """int64 [...]: where the largest of logits [..., C] is; among equals the lowest.

    A NaN counts as the largest of all.
    """
    if logits.device.type == "cpu":
        return torch.from_numpy(np.asarray(logits.numpy().argmax(axis=-1)))
    return logits.argmax(dim=-1)


def top_of(row: torch.Tensor) -> float:
    """The largest of a row [C]; NaN when one is NaN."""
    if row.device.type == "cpu":
        return float(row.numpy().max())
    return float(row[row.argmax()])


def _places(keep: torch.Tensor) -> torch.Tensor:
    if keep.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(keep.numpy()))
    return torch.nonzero(keep).squeeze(1)


def _head(values: np.ndarray, count: int) -> np.ndarray | None:
    """Places, ascending, of the ``count`` largest values and of few besides; ``None``:
    they are too few or too alike to be told apart this way.

    The values are split into groups. So many groups have a maximum of at least the
    ``count``-th largest maximum, and so that many values reach it.
    """
    groups = max(4 * count, _GROUPS)
    size = len(values) // groups
    if size < 2:
        return None
    whole = size * groups
    table = values[:whole].reshape(size, groups)
    maxima = table.max(axis=0)
    floor = np.partition(maxima, -count)[-count]
    columns = np.flatnonzero(maxima >= floor)
    if floor == -np.inf or len(columns) > 4 * count:
        return None
    rows, found = np.nonzero(table[:, columns] >= floor)
    tail = np.flatnonzero(values[whole:] >= floor)
    return np.concatenate([rows * groups + columns[found], tail + whole])


class Candidates:
    """Token ids and logits of one row, on their way from the full vocabulary to a draw.

    ``logits`` is float32 [C]; -inf marks a banned token. ``ids`` is int64 [C], or
    ``None`` while the whole vocabulary is in play (then the logits' index is the id).
    ``ordered``: logits descend, equal ones by ascending id; otherwise ids ascend.
    Never changed in place: every method gives a new one, or itself.

    On the CPU the searches are NumPy's: at 49,152 entries its argmax takes a twentieth of
    the time of torch's, its partition a third of topk's, its sort of values a tenth.
    """

    __slots__ = ("ids", "logits", "ordered", "tops")

    def __init__(
        self,
        logits: torch.Tensor,
        ids: torch.Tensor | None = None,
        *,
        ordered: bool = False,
        tops: np.ndarray | None = None,
    ) -> None:
        self.logits = logits
        self.ids = ids
        self.ordered = ordered
        self.tops = tops
        """What a sampler found out about the logits, for the one after it; never needed."""

    def __len__(self) -> int:
        return self.logits.shape[0]

    def token_ids(self) -> torch.Tensor:
        """int64 [C], also for a full row."""
        if self.ids is None:
            return torch.arange(len(self), device=self.logits.device)
        return self.ids

    def first(self) -> Candidates:
        """The most likely alone; of equal logits the lowest id."""
        place = 0 if self.ordered else int(first_best(self.logits))
        device = self.logits.device
        ids = torch.tensor([place], device=device) if self.ids is None else self.ids[place:][:1]
        return Candidates(self.logits[place:][:1], ids, ordered=True)

    def largest(self, count: int) -> torch.Tensor:
        """The ``count`` largest logits, descending; all when there are fewer.

        Values alone: ordering them costs a tenth of ordering their ids along.
        """
        count = min(count, len(self))
        if self.ordered:
            return self.logits[:count]
        if self.logits.device.type != "cpu":
            return torch.topk(self.logits, count).values
        values = self.logits.numpy()
        head = _head(values, count)
        if head is not None:
            values = values[head]
        if count < len(values):
            values = np.partition(values, -count)[-count:]
        return torch.from_numpy(np.sort(values)[::-1].copy())

    def cut(self, edge: float, equals: int) -> Candidates:
        """Those above ``edge``, and the ``equals`` lowest ids of those that equal it."""
        if self.logits.device.type == "cpu" and edge > -torch.inf:
            values = self.logits.numpy()
            places = np.flatnonzero(values >= values.dtype.type(edge))
            even = np.flatnonzero(values[places] == edge)
            if len(even) > equals:
                places = np.delete(places, even[max(equals, 0) :])
            return self.at(torch.from_numpy(places))
        keep = self.logits > edge
        if equals > 0:
            keep[_places(self.logits == edge)[:equals]] = True
        return self.where(keep)

    def best(self, count: int) -> Candidates:
        """The ``count`` >= 1 most likely, ordered; of equal logits the lower ids stay.

        Fewer when the rest are banned.
        """
        if count >= len(self):
            return self.sorted()
        if self.ordered:
            return Candidates(self.logits[:count], self.token_ids()[:count], ordered=True)
        head = _head(self.logits.numpy(), count) if self.logits.device.type == "cpu" else None
        if head is not None:
            return self.at(torch.from_numpy(head)).sorted().best(count)
        values = self.largest(count)
        edge = float(values[-1])
        # With fewer than count left, sorting the banned ones would cost more than all else.
        equals = 0 if edge == -torch.inf else int((values == edge).sum())
        return self.cut(edge, equals).sorted()

    def sorted(self) -> Candidates:
        """All of them, ordered."""
        if self.ordered:
            return self
        logits, places = torch.sort(self.logits, descending=True, stable=True)
        ids = places if self.ids is None else self.ids[places]
        return Candidates(logits, ids, ordered=True)

    def where(self, keep: torch.Tensor) -> Candidates:
        """Those with ``keep`` (bool [C]) true, in the same order."""
        return self.at(_places(keep))

    def scaled(self, factor: float) -> Candidates:
        """Logits times ``factor`` > 0, after their maximum was taken off (no overflow)."""
        logits = (self.logits - self.logits.max()).mul_(factor)
        return Candidates(logits, self.ids, ordered=self.ordered)

    def at(self, places: torch.Tensor, *, ordered: bool = False) -> Candidates:
        """Those at ``places`` (int64), ascending unless that puts them in order."""
        ids = places if self.ids is None else self.ids[places]
        return Candidates(self.logits[places], ids, ordered=ordered or self.ordered)
