"""Damaged safetensors files are noticed before anything is read by what they say (case 69)."""

import json
import struct

import pytest

from enginebay.conformance.tiny import write_tiny
from enginebay.errors import ModelError
from enginebay.plugins.formats.safetensors_header import read_header


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    folder = write_tiny(tmp_path_factory.mktemp("header") / "tiny")
    return (folder / "model.safetensors").read_bytes()


def test_intact_file_passes(tmp_path, intact):
    """The bytes that the cases below damage are a valid file."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(intact)
    assert read_header(path)["model.norm.weight"].shape == (64,)


def _header(data, edit):
    length = struct.unpack("<Q", data[:8])[0]
    table = edit(json.loads(data[8 : 8 + length]))
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def _set(table, name, **changes):
    return {**table, name: {**table[name], **changes}}


DAMAGE = {
    "cut at half": lambda data: data[: len(data) // 2],
    "cut in the header": lambda data: data[:100],
    "empty": lambda data: b"",
    "seven bytes": lambda data: data[:7],
    "huge header": lambda data: struct.pack("<Q", 2**60) + data[8:],
    "header of 2^63": lambda data: struct.pack("<Q", 2**63) + data[8:],
    "trailing bytes": lambda data: data + b"\0" * 16,
    "one byte short": lambda data: data[:-1],
    "pointer": lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    "web page": lambda data: b"<!DOCTYPE html><html><body>Not found</body></html>" * 9,
    "not json": lambda data: _header(data, lambda table: b"{" * 5000),
    "a list": lambda data: _header(data, lambda table: b"[]"),
    "name twice": lambda data: _header(
        data,
        lambda table: (
            json.dumps({"a": table["lm_head.weight"]})[:-1].encode()
            + b', "a": '
            + json.dumps(table["lm_head.weight"]).encode()
            + b"}"
        ),
    ),
    "overlap": lambda data: _header(
        data,
        lambda table: _set(
            table, "lm_head.weight", data_offsets=table["model.embed_tokens.weight"]["data_offsets"]
        ),
    ),
    "past the end": lambda data: _header(
        data, lambda table: _set(table, "model.norm.weight", data_offsets=[2**40, 2**40 + 256])
    ),
    "negative shape": lambda data: _header(
        data, lambda table: _set(table, "lm_head.weight", shape=[-300, -64])
    ),
    "wrong shape": lambda data: _header(
        data, lambda table: _set(table, "lm_head.weight", shape=[300, 65])
    ),
    "huge shape": lambda data: _header(
        data, lambda table: _set(table, "lm_head.weight", shape=[2**40, 2**40])
    ),
    "unknown type": lambda data: _header(
        data, lambda table: _set(table, "lm_head.weight", dtype="Q9")
    ),
    "no offsets": lambda data: _header(
        data, lambda table: {**table, "lm_head.weight": {"dtype": "F32", "shape": [1]}}
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_file_is_named(tmp_path, intact, damage):
    """Case 69: every kind of damage stops the start with the file and the likely cause."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(damage(intact))
    with pytest.raises(ModelError) as caught:
        read_header(path)
    assert "model.safetensors" in str(caught.value)
    assert "incomplete download?" in str(caught.value)
