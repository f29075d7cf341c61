"""Attention over whole sequences, without a cache: for one pass over calibration text."""

import torch
import torch.nn.functional as F

from enginebay.batch import Batch
from enginebay.hookspecs.model import ModelSpec

from ..kernels.reference_attention import rotate


class DenseAttention:
    """Causal attention of sequences that are computed from their first token at once."""

    def __init__(self, spec: ModelSpec) -> None:
        self._window = spec.sliding_window
        self._starts: list[int] = []
        self._keys = self._values = torch.empty(0)

    def prepare(self, batch: Batch) -> None:
        """Note where sequences begin."""
        self._starts = batch.row_starts.tolist()

    def write(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cos_sin: torch.Tensor,
    ) -> None:
        """Rotate q and k in place; k and v are kept until the next layer's."""
        rotate(q, cos_sin)
        rotate(k, cos_sin)
        self._keys, self._values = k, v

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """q [T, Hq, D], rotated -> [T, Hq * D]."""
        mixed = torch.empty_like(q)
        for first, after in zip(self._starts[:-1], self._starts[1:], strict=True):
            rows = slice(first, after)
            query, keys, values = (
                part[rows].transpose(0, 1) for part in (q, self._keys, self._values)
            )
            seen = self._seen(after - first, q.device)
            result = F.scaled_dot_product_attention(
                query, keys, values, attn_mask=seen, is_causal=seen is None, enable_gqa=True
            )
            mixed[rows] = result.transpose(0, 1)
        return mixed.flatten(1)

    def _seen(self, size: int, device: torch.device) -> torch.Tensor | None:
        """bool [T, T]: what a row looks at; ``None``: all that came before it."""
        if self._window is None or self._window >= size:
            return None
        place = torch.arange(size, device=device)
        behind = place.unsqueeze(1) - place
        return (behind >= 0) & (behind < self._window)
