"""The GGUF container: what damage is noticed, and before what (case 69)."""

import struct

import pytest

from enginebay.conformance.tiny import write_tiny
from enginebay.conformance.tiny_gguf import write_tiny_gguf
from enginebay.errors import ModelError
from enginebay.plugins.formats.gguf_file import GgufFile


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("gguf") / "tiny")


def _entry(data, key, change):
    """Change the bytes right behind a metadata key."""
    at = data.index(key.encode()) + len(key)
    return data[:at] + change(data[at:])


DAMAGE = {
    "cut at half": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-1],
    "cut in the metadata": lambda data: data[:2000],
    "cut in the header": lambda data: data[:20],
    "four bytes": lambda data: data[:4],
    "empty": lambda data: b"",
    "pointer": lambda data: b"version https://git-lfs.github.com/spec/v1\n",
    "web page": lambda data: b"<!DOCTYPE html>" * 100,
    "huge counts": lambda data: data[:8] + struct.pack("<QQ", 2**60, 2**60) + data[24:],
    "huge text": lambda data: data[:24] + struct.pack("<Q", 2**62) + data[32:],
    "huge array": lambda data: _entry(
        data, "tokenizer.ggml.tokens", lambda rest: rest[:8] + struct.pack("<Q", 2**50) + rest[16:]
    ),
    "unknown entry type": lambda data: _entry(
        data, "llama.block_count", lambda rest: struct.pack("<I", 77) + rest[4:]
    ),
    "not text": lambda data: _entry(
        data, "tokenizer.ggml.model", lambda rest: rest[:12] + b"\xff\xfe\xfd\xfc" + rest[16:]
    ),
    "odd width": lambda data: _entry(
        data, "blk.0.attn_q.weight", lambda rest: rest[:4] + struct.pack("<Q", 33) + rest[12:]
    ),
    "huge width": lambda data: _entry(
        data, "blk.0.attn_q.weight", lambda rest: rest[:4] + struct.pack("<Q", 2**59) + rest[12:]
    ),
    "offset past the end": lambda data: _entry(
        data, "blk.0.attn_q.weight", lambda rest: rest[:24] + struct.pack("<Q", 2**40) + rest[32:]
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_file_is_named(tmp_path, tiny, damage):
    """Case 69 for GGUF: file and likely cause, before anything large is allocated."""
    path = write_tiny_gguf(tmp_path / "m.gguf", tiny, "Q8_0")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError) as caught:
        GgufFile(path)
    assert "m.gguf" in str(caught.value)
    assert "incomplete download?" in str(caught.value)


def test_counts_are_checked_against_the_size(tmp_path, tiny):
    """A count is compared with the bytes that are left before anything is read by it."""
    path = write_tiny_gguf(tmp_path / "m.gguf", tiny)
    path.write_bytes(DAMAGE["huge counts"](path.read_bytes()))
    with pytest.raises(ModelError, match=f"claims {2**60} items, more than the file holds"):
        GgufFile(path)


@pytest.mark.parametrize(("version", "message"), [(1, "of version 1"), (3 << 24, "big-endian")])
def test_other_versions_are_refused(tmp_path, tiny, version, message):
    """Old and byte-swapped files are told apart from damaged ones."""
    path = write_tiny_gguf(tmp_path / "m.gguf", tiny)
    data = path.read_bytes()
    path.write_bytes(data[:4] + struct.pack("<I", version) + data[8:])
    with pytest.raises(ModelError, match=message):
        GgufFile(path)


def test_tensor_type_newer_than_the_package_is_named(tmp_path, tiny):
    """A type that the package does not know names the tensor and the type."""
    path = write_tiny_gguf(tmp_path / "m.gguf", tiny)
    data = path.read_bytes()
    path.write_bytes(
        _entry(data, "blk.0.attn_q.weight", lambda rest: rest[:20] + b"\xe7\x03\0\0" + rest[24:])
    )
    with pytest.raises(ModelError, match=r"'blk.0.attn_q.weight' has the unknown type 999"):
        GgufFile(path)
