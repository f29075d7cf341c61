"""The tokens still in play for one draw, with their logits."""

from __future__ import annotations

import torch


class Candidates:
    """Token ids and logits of one row, on their way from the full vocabulary to a draw.

    ``ids`` is int64 [C], or ``None`` while the whole vocabulary is in play (then the
    logits' index is the id). ``ordered``: logits descend, equal ones by ascending id.
    """

    __slots__ = ("ids", "logits", "ordered")

    def __init__(
        self, logits: torch.Tensor, ids: torch.Tensor | None = None, *, ordered: bool = False
    ) -> None:
        self.logits = logits
        self.ids = ids
        self.ordered = ordered

    def __len__(self) -> int:
        return self.logits.shape[0]

    def token_ids(self) -> torch.Tensor:
        """int64 [C], also for a full row."""
        if self.ids is None:
            return torch.arange(len(self), device=self.logits.device)
        return self.ids

    def best(self, count: int) -> Candidates:
        """The ``count`` most likely, ordered; of equal logits the lower ids stay."""
        if count >= len(self):
            return self.sorted()
        if self.ordered:
            ids = None if self.ids is None else self.ids[:count]
            return Candidates(self.logits[:count], ids, ordered=True)
        edge = torch.topk(self.logits, count).values[-1]
        places = torch.nonzero(self.logits >= edge).squeeze(1)
        ids = places if self.ids is None else self.ids[places]
        return Candidates(self.logits[places], ids).sorted().best(count)

    def sorted(self) -> Candidates:
        """All of them, ordered."""
        if self.ordered:
            return self
        ids = self.token_ids()
        if self.ids is not None:
            ids, places = torch.sort(ids)
            logits = self.logits[places]
        else:
            logits = self.logits
        logits, places = torch.sort(logits, descending=True, stable=True)
        return Candidates(logits, ids[places], ordered=True)

    def where(self, keep: torch.Tensor) -> Candidates:
        """Those with ``keep`` (bool [C]) true, in the same order."""
        places = torch.nonzero(keep).squeeze(1)
        ids = places if self.ids is None else self.ids[places]
        return Candidates(self.logits[places], ids, ordered=self.ordered)

    def scaled(self, factor: float) -> Candidates:
        """Logits times ``factor`` > 0, after their maximum was taken off (no overflow)."""
        logits = (self.logits - self.logits.max()) * factor
        return Candidates(logits, self.ids, ordered=self.ordered)
