"""The GGUF container: metadata and a directory of tensors, read from a mapped file.

Layout (GGUF specification, versions 2 and 3, little-endian): magic, version, counts;
key, type, value for each entry; name, dimensions (fastest first), type, offset for each
tensor; then, aligned, the data. The package ``gguf`` supplies the type tables; its own
reader takes seconds for a vocabulary of 50,000, this one a tenth of a second.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np

from enginebay.errors import ModelError

from .damage import damaged, refuse_pointer

MAGIC: Final = b"GGUF"
_SCALARS: Final = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Value type -> ``struct`` code."""
_STRING: Final = 8
_ARRAY: Final = 9


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies and how it is stored; ``shape`` is slowest axis first."""

    name: str
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    offset: int
    """Bytes from the beginning of the file."""
    num_bytes: int


class GgufFile:
    """One open GGUF file. The data stays on disk until it is asked for."""

    def __init__(self, path: Path) -> None:
        """:raises ModelError: the file is no GGUF, or damaged; names the file"""
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, StoredTensor] = {}
        with path.open("rb") as stream:
            beginning = stream.read(24)
            _check_beginning(path, beginning)
            # Read only: a writable private mapping would count as memory committed.
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        _, num_tensors, num_entries = struct.unpack("<IQQ", beginning[4:])
        cursor = _Cursor(path, self._map, 24)
        try:
            for _ in range(cursor.checked(num_entries)):
                key = cursor.text()
                self.metadata[key] = cursor.value(cursor.scalar("I"))
            self._read_directory(cursor, cursor.checked(num_tensors))
        except (struct.error, ValueError, RecursionError) as error:
            raise damaged(path, f"the GGUF header can't be read ({error})") from error

    def _read_directory(self, cursor: "_Cursor", num_tensors: int) -> None:
        listed = []
        for _ in range(num_tensors):
            name = cursor.text()
            num_axes = cursor.scalar("I")
            axes = [cursor.scalar("Q") for _ in range(cursor.checked(num_axes))]
            listed.append((name, tuple(reversed(axes)), cursor.scalar("I"), cursor.scalar("Q")))
        alignment = self.metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise damaged(self.path, f"general.alignment is {alignment!r}")
        start = -(-cursor.position // alignment) * alignment
        for name, shape, kind, offset in listed:
            if name in self.tensors:
                msg = f"{self.path}: tensor {name!r} is defined twice; fetch or convert it again"
                raise ModelError(msg)
            self.tensors[name] = self._locate(name, shape, kind, start + offset)

    def _locate(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> StoredTensor:
        try:
            stored_as = gguf.GGMLQuantizationType(kind)
        except ValueError as error:
            msg = f"{self.path}: tensor {name!r} has the unknown type {kind}; is `gguf` too old?"
            raise ModelError(msg) from error
        block, block_bytes = gguf.GGML_QUANT_SIZES[stored_as]
        num_values = int(np.prod([int(axis) for axis in shape], dtype=object))
        if not shape or shape[-1] % block:
            raise damaged(self.path, f"tensor {name!r}: {list(shape)} is not in blocks of {block}")
        num_bytes = num_values // block * block_bytes
        if offset + num_bytes > len(self._map):
            raise damaged(
                self.path,
                f"tensor {name!r} ends at byte {offset + num_bytes}, the file at {len(self._map)}",
            )
        return StoredTensor(name, shape, stored_as, offset, num_bytes)

    def rows(self, tensor: StoredTensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The stored bytes, uint8 [rows, bytes a row]: a read-only view of the file."""
        data = np.frombuffer(self._map, np.uint8, tensor.num_bytes, tensor.offset)
        num_rows = tensor.num_bytes and int(np.prod(tensor.shape[:-1], dtype=np.int64))
        return data.reshape(num_rows, -1) if num_rows else data.reshape(0, 0)


def _check_beginning(path: Path, beginning: bytes) -> None:
    refuse_pointer(path, beginning)
    if beginning[:4] != MAGIC:
        raise damaged(path, f"it begins with {beginning[:4]!r}, a GGUF file with {MAGIC!r}")
    if len(beginning) < 24:
        raise damaged(path, "it ends within the GGUF header")
    version = struct.unpack("<I", beginning[4:8])[0]
    if version not in (2, 3):
        kind = "big-endian" if version & 0xFFFF == 0 else f"of version {version}"
        msg = f"{path}: this GGUF file is {kind}; versions 2 and 3, little-endian, can be read"
        raise ModelError(msg)


class _Cursor:
    """A position in the header; every read is checked against the file's end."""

    def __init__(self, path: Path, data: mmap.mmap, position: int) -> None:
        self.path = path
        self.data = data
        self.position = position

    def checked(self, count: int) -> int:
        """``count`` items of at least one byte each, if the file can hold them."""
        if count > len(self.data) - self.position:
            raise damaged(self.path, f"the header claims {count} items, more than the file holds")
        return count

    def scalar(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self.data, self.position)[0]
        self.position += struct.calcsize("<" + code)
        return value

    def text(self) -> str:
        length = self.checked(self.scalar("Q"))
        begin, self.position = self.position, self.position + length
        return self.data[begin : self.position].decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise damaged(self.path, f"a metadata entry has the unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind, count = self.scalar("I"), self.checked(self.scalar("Q"))
        if kind not in _SCALARS:
            return [self.value(kind) for _ in range(count)]
        code = f"<{count}{_SCALARS[kind]}"
        values = struct.unpack_from(code, self.data, self.position)
        self.position += struct.calcsize(code)
        return list(values)
