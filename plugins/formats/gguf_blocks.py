"""Block-quantized weights: their values in float32.

The types are those of ggml. Q8_0, Q4_0 and Q4_1, which most files consist of, are
unpacked here, with the same roundings as the package ``gguf`` has, at twice its speed;
the other types are left to the package.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind

from enginebay.errors import ModelError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_PLAIN: Final = {
    Kind.F32: torch.float32,
    Kind.F16: torch.float16,
    Kind.BF16: torch.bfloat16,
    Kind.F64: torch.float64,
}
_CHUNK: Final = 262_144
"""Values unpacked at a time: few calls, and no more scratch memory than 1 MB."""


def metadata_bytes(kind: Kind, num_bytes: int) -> int:
    """Bytes of a stored tensor that are no codes: scales, and minimums where there are.

    A type's name tells the bits of a code (``Q4_1``, ``IQ2_XS``, ``MXFP4``); types that
    are not named so, and plain numbers, count as codes alone.
    """
    bits = re.match(r"(?:Q|IQ|MXFP)(\d)", kind.name)
    if bits is None:
        return 0
    values, size = map(int, gguf.GGML_QUANT_SIZES[kind])
    return num_bytes // size * (size - values * int(bits[1]) // 8)


def unpack(rows: Bytes, kind: Kind) -> torch.Tensor:
    """Values of ``rows`` (uint8 [rows, bytes a row]), one row of the result for each.

    :return: memory of its own; float32 for block types, else the stored type
    :raises ModelError: no dequantizer for the type
    """
    if kind in _PLAIN:
        return torch.from_numpy(rows.copy()).view(_PLAIN[kind])
    if kind in _UNPACKERS:
        return _unpack_chunks(rows, kind, _UNPACKERS[kind])
    try:
        values = gguf.quants.dequantize(np.ascontiguousarray(rows), kind)
    except NotImplementedError as error:
        msg = f"weights of type {kind.name} can't be dequantized; convert the model to Q8_0 or F16"
        raise ModelError(msg) from error
    return torch.from_numpy(values)


def _unpack_chunks(
    rows: Bytes, kind: Kind, unpacker: Callable[[torch.Tensor, torch.Tensor], None]
) -> torch.Tensor:
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rows.reshape(-1, block_bytes)
    values = torch.empty(len(blocks), block_size)
    step = _CHUNK // block_size
    for begin in range(0, len(blocks), step):
        chunk = torch.from_numpy(blocks[begin : begin + step].copy())
        unpacker(chunk, values[begin : begin + step])
    return values.view(len(rows), -1)


def _halves(chunk: torch.Tensor, begin: int) -> torch.Tensor:
    """The float16 at byte ``begin`` of each block, as float32 [blocks, 1]."""
    return chunk[:, begin : begin + 2].view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [blocks, 16] -> uint8 [blocks, 32]: all low halves, then all high ones."""
    unpacked = torch.empty(len(packed), 2, 16, dtype=torch.uint8)
    torch.bitwise_and(packed, 15, out=unpacked[:, 0])
    torch.bitwise_right_shift(packed, 4, out=unpacked[:, 1])
    return unpacked.view(-1, 32)


def _unpack_q8_0(chunk: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(chunk[:, 2:].view(torch.int8)).mul_(_halves(chunk, 0))


def _unpack_q4_0(chunk: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(_nibbles(chunk[:, 2:])).sub_(8.0).mul_(_halves(chunk, 0))


def _unpack_q4_1(chunk: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(_nibbles(chunk[:, 4:])).mul_(_halves(chunk, 0)).add_(_halves(chunk, 2))


_UNPACKERS: Final = {
    Kind.Q8_0: _unpack_q8_0,
    Kind.Q4_0: _unpack_q4_0,
    Kind.Q4_1: _unpack_q4_1,
}
