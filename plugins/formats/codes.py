"""Codes of a quantized weight, and the numbers they stand for."""

from dataclasses import dataclass
from typing import Final

import torch

from enginebay.hookspecs.format import StoredForm, StoredWeight

_ROWS: Final = 256
"""Rows dequantized at a time where columns are out of order: little scratch memory."""


@dataclass(frozen=True)
class Codes:
    """A weight [N, K] is ``(codes - zeros) * scales``, each column with its group's."""

    codes: torch.Tensor
    """int8 [N, K]"""
    scales: torch.Tensor
    """float32 [N, groups]"""
    zeros: torch.Tensor | None = None
    """float32 like ``scales``, in the numbering of ``codes``"""
    groups: torch.Tensor | None = None
    """int64 [K], the group of each column; ``None``: equal runs of neighbours"""
    input_scale: torch.Tensor | None = None
    """float32 [1]"""

    def dequantized(self) -> torch.Tensor:
        """float32 [N, K], memory of its own."""
        values = self.codes.float()
        if self.groups is not None:
            return self._scattered(values, self.groups)
        grouped = values.view(len(values), self.scales.shape[1], -1)
        if self.zeros is not None:
            grouped -= self.zeros.unsqueeze(-1)
        grouped *= self.scales.unsqueeze(-1)
        return values

    def _scattered(self, values: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        for begin in range(0, len(values), _ROWS):
            rows = slice(begin, begin + _ROWS)
            if self.zeros is not None:
                values[rows] -= self.zeros[rows][:, groups]
            values[rows] *= self.scales[rows][:, groups]
        return values

    def stored(self, form: StoredForm) -> StoredWeight:
        """The contract's view; ``form`` must be this weight's, with columns in order."""
        return StoredWeight(
            form=form,
            codes=self.codes,
            scales=self.scales,
            offsets=None if self.zeros is None else -self.zeros * self.scales,
            input_scale=self.input_scale,
        )


def numbered(
    codes: torch.Tensor, zeros: torch.Tensor | None, bits: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Unsigned codes and zero points (uint8), in the numbering that ``Codes`` has.

    Codes of 4 bits stay 0 .. 15 when there are zero points and become -8 .. 7 when there
    are none; those of 8 bits become -128 .. 127, their zero points with them.

    :return: int8 codes, in the memory of those given; float32 zero points
    """
    if bits == 4 and zeros is not None:
        return codes.view(torch.int8), zeros.float()
    middle = 1 << (bits - 1)
    # Modulo 256, which is what int8 needs.
    codes.sub_(middle)
    return codes.view(torch.int8), None if zeros is None else zeros.float() - middle
