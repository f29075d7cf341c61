"""What the weight-only schemes share: which layers stay as they are, and the count."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

import torch

from enginebay.errors import StackError
from enginebay.hookspecs.quant import PackedLinear

from .tally import Tally

GROUPS: Final = (128, 64, 32)
"""Columns of a weight that may share a scale."""
INTEGER: Final = ("w8a8-groups", "w4a8")
"""Schemes whose rows are int8 too, in the groups of the weight."""
CHUNK: Final = 1 << 20
"""Weights that are rounded at a time: what floats take beside the codes is bounded."""


class CodeTally(Tally):
    """Makes layers of codes too."""

    def code_layer(
        self,
        name: str,
        scheme: str,
        tensors: dict[str, torch.Tensor],
        bias: torch.Tensor | None,
        bits: int,
    ) -> PackedLinear:
        """A layer of codes in groups, counted at ``bits`` a code.

        :param tensors: ``weight`` [N, K], ``scales`` float32 [N, G], perhaps ``offsets``
        """
        outer, inner = tensors["weight"].shape
        groups = tensors["scales"].shape[1]
        self._codes += outer * inner * bits // 8
        self.metadata_bytes += sum(each.nbytes for key, each in tensors.items() if key != "weight")
        group, whole = 0 if groups == 1 else inner // groups, scheme in INTEGER
        return PackedLinear(
            name=name,
            scheme=scheme,
            in_features=inner,
            out_features=outer,
            tensors=tensors,
            bias=bias,
            inputs="int8" if whole else "float",
            group_size=group,
            input_group=group if whole else 0,
        )


def ignored(name: str, patterns: Sequence[str]) -> str:
    """Why a layer stays in float; empty: no pattern matches its name."""
    for pattern in patterns:
        if fnmatchcase(name, pattern):
            return f"matches ignore = {pattern!r}"
    return ""


def checked_group(plugin: str, group: int, also: Sequence[int] = ()) -> None:
    """:raises StackError: no group size of the scheme"""
    known = (*also, *sorted(GROUPS))
    if group not in known:
        told = ", ".join(map(str, known))
        msg = f"quant.{plugin}: group_size is {group}; it must be one of {told}"
        raise StackError(msg)


def fitting_group(columns: int, group: int) -> int | None:
    """The group size for a layer: ``group``, or the greatest below it that divides the
    columns; ``None``: none does."""
    return next((size for size in GROUPS if size <= group and columns % size == 0), None)


def row_chunks(weight: torch.Tensor) -> list[slice]:
    """Rows of a weight [N, K], some at a time."""
    rows = max(1, CHUNK // max(1, weight.shape[1]))
    return [slice(start, start + rows) for start in range(0, weight.shape[0], rows)]
