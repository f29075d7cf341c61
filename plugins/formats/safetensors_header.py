"""The header of a safetensors file, read and held against the file's size.

Layout: 8 bytes little-endian N, N bytes of JSON (name -> dtype, shape, data_offsets),
then the data that the offsets count from. Everything is checked before anything as
large as the file says is allocated, and every byte of the data must belong to exactly
one tensor.
"""

import json
import math
from pathlib import Path
from typing import Any, Final

import msgspec

from enginebay.hookspecs.format import TensorInfo

from .damage import damaged, refuse_pointer

_MAX_HEADER: Final = 100_000_000
"""Bytes; the format's own limit."""
_BITS: Final = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Every tensor of a safetensors file.

    :raises ModelError: the file is truncated, padded or garbled; it names the file
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        beginning = stream.read(24)
        refuse_pointer(path, beginning)
        if size < 8:
            raise damaged(path, f"{size} bytes can't hold a safetensors header")
        length = int.from_bytes(beginning[:8], "little")
        if length > min(size - 8, _MAX_HEADER):
            raise damaged(path, f"the header claims {length} bytes, the file has {size}")
        stream.seek(8)
        text = stream.read(length)
    entries = _parse(path, text)
    _check_layout(path, entries, size - 8 - length)
    return {
        name: TensorInfo(
            shape=entry.shape,
            dtype=entry.dtype,
            file=str(path),
            num_bytes=entry.data_offsets[1] - entry.data_offsets[0],
        )
        for name, entry in entries.items()
    }


def _parse(path: Path, text: bytes) -> dict[str, _Entry]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise damaged(path, "the header names a tensor twice")
        return table

    try:
        table = json.loads(text, object_pairs_hook=once)
        if not isinstance(table, dict):
            raise damaged(path, "the header is not a table of tensors")
        table.pop("__metadata__", None)
        return {name: msgspec.convert(entry, _Entry) for name, entry in table.items()}
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise damaged(path, f"the header can't be read ({error})") from error


def _check_layout(path: Path, entries: dict[str, _Entry], size: int) -> None:
    """Hold the entries against ``size`` bytes of data: no hole, no overlap, no rest."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, stop = entry.data_offsets
        if begin != end or stop < begin or min(entry.shape, default=0) < 0:
            raise damaged(path, f"tensor {name!r} has data offsets {begin}..{stop} after {end}")
        bits = _BITS.get(entry.dtype)
        if bits is None:
            raise damaged(path, f"tensor {name!r} has the unknown type {entry.dtype!r}")
        if (stop - begin) * 8 != math.prod(entry.shape) * bits:
            shape = list(entry.shape)
            raise damaged(
                path,
                f"tensor {name!r} of shape {shape} and type {entry.dtype} "
                f"can't have {stop - begin} bytes",
            )
        end = stop
    if end != size:
        raise damaged(path, f"the header describes {end} bytes of data, the file holds {size}")
