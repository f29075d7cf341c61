"""One weight that several stored tensors make up, and the checks they all need."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from enginebay.errors import ModelError
from enginebay.hookspecs.format import Checkpoint, StoredForm, TensorInfo

from .codes import Codes

FLOATS: Final = ("F32", "F16", "BF16", "F64")
"""Stored types of plain numbers."""
PARTS: Final = (
    *(".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_shape"),
    *(".weight_g_idx", ".weight_scale_inv", ".weight_global_scale"),
    *(".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale"),
    *(".qweight", ".qzeros", ".scales", ".g_idx"),
)
"""Ends of names that only parts of quantized weights have."""


@dataclass(frozen=True)
class QuantizedWeight:
    """Where a weight's parts are, and how they are read."""

    shape: tuple[int, int]
    bits: int
    form: StoredForm | None
    """``None``: it can only be dequantized."""
    codes: str
    """The stored tensor that holds them."""
    others: tuple[str, ...]
    """The stored tensors with scales and all the rest."""
    read: Callable[[], Codes]

    def info(self, tensors: Mapping[str, TensorInfo]) -> TensorInfo:
        """The weight as one tensor; ``tensors`` are the stored ones."""
        beside = sum(tensors[name].num_bytes for name in self.others)
        return TensorInfo(
            shape=self.shape,
            dtype=f"int{self.bits}",
            file=tensors[self.codes].file,
            num_bytes=tensors[self.codes].num_bytes + beside,
            metadata_bytes=beside,
        )


def expect(
    tensors: Mapping[str, TensorInfo],
    name: str,
    dtypes: Sequence[str],
    *shapes: tuple[int, ...],
    why: str,
) -> TensorInfo:
    """A stored tensor that must be there.

    :param shapes: those that are right
    :param why: what makes it so, for the message
    :raises ModelError: it is missing, or of another type or shape
    """
    info = tensors.get(name)
    if info is None:
        place = next(iter(tensors.values())).file
        msg = f"{place}: tensor {name!r} is missing, which {why} needs; is the download complete?"
        raise ModelError(msg)
    if info.dtype not in dtypes or info.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        msg = (
            f"{info.file}: tensor {name!r} has shape {list(info.shape)} and type {info.dtype}, "
            f"{why} needs {wanted} and {' or '.join(dtypes)}; is it another model's?"
        )
        raise ModelError(msg)
    return info


def scales_of(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """Scales in float32.

    :raises ModelError: one is no number
    """
    scales = checkpoint.load(name).float()
    if not bool(torch.isfinite(scales).all()):
        msg = f"{checkpoint.tensors[name].file}: tensor {name!r} has a scale that is no number"
        raise ModelError(f"{msg}; quantize the model again")
    return scales


def count_groups(info: TensorInfo, name: str, columns: int, size: int) -> int:
    """Groups of ``size`` columns in a row; -1: one.

    :raises ModelError: the last one would be short; names the tensor
    """
    if size == -1:
        return 1
    if columns % size:
        msg = (
            f"{info.file}: {name!r} has {columns} columns, which are not in groups of {size}; "
            f"quantize it with a divisor of {columns}"
        )
        raise ModelError(msg)
    return columns // size


def column_groups(
    checkpoint: Checkpoint, name: str, columns: int, groups: int
) -> torch.Tensor | None:
    """The group of each column, int64; ``None``: equal runs of neighbours, in order.

    A tensor of -1 alone was never filled in, and means the same.

    :raises ModelError: the groups are not those that the scales are of
    """
    expect(checkpoint.tensors, name, ("I32", "I64"), (columns,), why="a weight with groups")
    order = checkpoint.load(name).long()
    if torch.equal(order, torch.arange(columns) * groups // columns) or bool((order == -1).all()):
        return None
    low, high = int(order.min()), int(order.max())
    if low < 0 or high >= groups:
        msg = (
            f"{checkpoint.tensors[name].file}: tensor {name!r} has groups {low} .. {high}, "
            f"the scales have 0 .. {groups - 1}; is it another model's?"
        )
        raise ModelError(msg)
    return order


def refuse_leftovers(tensors: Mapping[str, TensorInfo], why: str) -> None:
    """Refuse codes that nobody takes: as plain numbers they would load, and mean nothing.

    :param tensors: those that will be read as they are
    :param why: what says that they are plain
    :raises ModelError: one of them is a part of a quantized weight
    """
    for name, info in tensors.items():
        plain = info.dtype in FLOATS or not name.endswith(".weight")
        if name.endswith(PARTS) or not plain:
            msg = (
                f"{info.file}: tensor {name!r} of type {info.dtype} belongs to a quantized "
                f"weight, but {why}; correct that, or use the unquantized model"
            )
            raise ModelError(msg)
