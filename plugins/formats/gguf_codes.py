"""Blocks of ggml's common types taken apart: codes, scales and minimums, nothing rounded.

A block has 32 values: ``Q8_0`` a float16 scale and 32 int8 codes; ``Q4_0`` a scale and 16
bytes, all low halves first; ``Q4_1`` a scale, a minimum and 16 bytes.
"""

from typing import Any, Final

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind

from enginebay.hookspecs.format import StoredForm, StoredWeight

from .gguf_blocks import Bytes

_BITS: Final = {Kind.Q8_0: 8, Kind.Q4_0: 4, Kind.Q4_1: 4}
_CHUNK: Final = 8192
"""Blocks at a time: they stay in the cache from one pass to the next."""


def block_form(kind: Kind, shape: tuple[int, ...]) -> StoredForm | None:
    """The form of a matrix in blocks that ``block_codes`` knows, else ``None``."""
    if kind not in _BITS or len(shape) != 2:
        return None
    return StoredForm(
        bits=_BITS[kind],
        group_size=int(gguf.GGML_QUANT_SIZES[kind][0]),
        offsets=kind is Kind.Q4_1,
    )


def block_codes(rows: Bytes, kind: Kind, form: StoredForm) -> StoredWeight:
    """Take apart ``rows`` (uint8 [N, bytes a row]).

    The codes of ``Q4_0`` are -8 .. 7 and those of ``Q4_1`` 0 .. 15. ``dequantized()`` of
    the result has the bits of ``gguf_blocks.unpack``: both multiply, then add.
    """
    blocks = rows.reshape(-1, int(gguf.GGML_QUANT_SIZES[kind][1]))
    codes = np.empty((len(blocks), form.group_size), np.uint8)
    begin = 4 if form.offsets else 2
    for first in range(0, len(blocks), _CHUNK):
        part = slice(first, first + _CHUNK)
        if form.bits == 8:
            codes[part] = blocks[part, begin:]
        else:
            _nibbles(blocks[part, begin:], codes[part], signed=not form.offsets)
    return StoredWeight(
        form=form,
        codes=torch.from_numpy(codes.view(np.int8)).view(len(rows), -1),
        scales=_halves(blocks, 0, len(rows)),
        offsets=_halves(blocks, 2, len(rows)) if form.offsets else None,
    )


def _nibbles(packed: Bytes, codes: Bytes, *, signed: bool) -> None:
    """uint8 [blocks, 16] -> [blocks, 32]: all low halves, then all high ones."""
    np.bitwise_and(packed, 15, out=codes[:, :16])
    np.right_shift(packed, 4, out=codes[:, 16:])
    if signed:
        np.subtract(codes, 8, out=codes)


def _halves(blocks: Bytes, begin: int, num_rows: int) -> torch.Tensor:
    """The float16 at byte ``begin`` of each block, float32 [rows, blocks a row]."""
    stored: np.ndarray[Any, Any] = np.ascontiguousarray(blocks[:, begin : begin + 2])
    return torch.from_numpy(stored.view(np.float16).astype(np.float32)).view(num_rows, -1)
