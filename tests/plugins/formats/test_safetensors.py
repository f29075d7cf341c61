"""Safetensors folders: which file defines a tensor, and what damage is noticed."""

import json
import shutil
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from enginebay.conformance.tiny import write_tiny
from enginebay.errors import ModelError
from enginebay.hookspecs.format import FormatContext
from enginebay.hookspecs.source import Files
from enginebay.plugins.formats import safetensors as plugin

INDEX = "model.safetensors.index.json"


def open_(path):
    reader = plugin.enginebay_format(plugin.Options(), FormatContext())
    return reader.open(Files(path=str(path), origin="test", revision="1"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("st") / "tiny")


@pytest.fixture
def folder(tiny, tmp_path):
    """A private copy, for tests that damage it."""
    return shutil.copytree(tiny, tmp_path / "model")


def shard(folder, count=3):
    """Split the weights over numbered files with an index; returns the weight map."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    weight_map = {name: names[i % count] for i, name in enumerate(tensors)}
    for file in names:
        part = {name: tensors[name] for name in tensors if weight_map[name] == file}
        save_file(part, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return weight_map


def same(checkpoint, reference):
    return set(checkpoint.tensors) == set(reference) and all(
        torch.equal(checkpoint.load(name), reference[name]) for name in reference
    )


def test_single_file_is_read_whole(tiny):
    """Config, generation config, shapes, types and values are those on disk."""
    checkpoint = open_(tiny)
    reference = load_file(tiny / "model.safetensors")
    assert same(checkpoint, reference)
    assert checkpoint.config["hidden_size"] == 64
    assert checkpoint.generation["eos_token_id"] == 2
    info = checkpoint.tensors["lm_head.weight"]
    assert (info.shape, info.dtype, info.file) == (
        (300, 64),
        "F32",
        str(tiny / "model.safetensors"),
    )
    assert same(open_(tiny / "model.safetensors"), reference)


def test_loaded_tensor_does_not_map_the_file(folder):
    """Overwriting the file later changes nothing that was loaded."""
    checkpoint = open_(folder)
    weight = checkpoint.load("lm_head.weight")
    before = weight.clone()
    path = folder / "model.safetensors"
    with path.open("r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        stream.write(b"\0" * (path.stat().st_size // 2))
    assert torch.equal(weight, before)


def test_shards_equal_the_single_file(folder):
    """An index with three shards gives the same tensors."""
    reference = load_file(folder / "model.safetensors")
    shard(folder)
    assert same(open_(folder), reference)
    (folder / INDEX).unlink()
    assert same(open_(folder), reference)


def test_weight_map_is_authoritative(folder):
    """Case 68: stray tensors, other layouts and adapters never replace indexed weights."""
    reference = load_file(folder / "model.safetensors")
    weight_map = shard(folder)
    wrong = {name: torch.full_like(tensor, 7.0) for name, tensor in reference.items()}
    save_file(wrong, folder / "consolidated.safetensors")
    save_file(wrong, folder / "zz-older.safetensors")
    save_file({"lora_A": torch.ones(2, 2)}, folder / "adapter_model.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"not read")
    file = sorted(set(weight_map.values()))[2]
    moved = next(name for name, home in weight_map.items() if home != file)
    save_file({**load_file(folder / file), moved: wrong[moved]}, folder / file)
    with capture_logs() as logs:
        assert same(open_(folder), reference)
    assert [(entry["file"], entry["tensors"]) for entry in logs] == [(file, moved)]


def test_tensor_in_two_files_without_index_is_refused(folder):
    """Nothing says which is right, so the start stops and names both files."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "a.safetensors")
    save_file({"model.norm.weight": torch.ones(64)}, folder / "b.safetensors")
    with pytest.raises(ModelError, match=r"model.norm.weight.*a\.safetensors.*b\.safetensors"):
        open_(folder)


def test_missing_shards_are_named(folder):
    """Case 68: an index that names more files than exist, with and without the index."""
    shard(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelError, match="3 files, 1 are missing: model-00002-of-00003"):
        open_(folder)
    (folder / INDEX).unlink()
    with pytest.raises(ModelError, match=r"of 3 files these are missing: \[2\]"):
        open_(folder)


def test_tensor_absent_from_its_shard_is_named(folder):
    """The index promises a tensor that its file does not have."""
    weight_map = shard(folder)
    file = weight_map["lm_head.weight"]
    rest = load_file(folder / file)
    del rest["lm_head.weight"]
    save_file(rest, folder / file)
    with pytest.raises(ModelError, match=rf"{file}: tensor 'lm_head.weight'"):
        open_(folder)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", 3])
def test_index_stays_in_its_folder(folder, name):
    """A weight map can't point outside of the model's folder."""
    (folder / INDEX).write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(ModelError, match="a file name in the same folder"):
        open_(folder)


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
def test_damaged_file_is_named(folder, damage):
    """Case 69: every kind of damage stops the start with the file and the likely cause."""
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError) as caught:
        open_(folder)
    assert "model.safetensors" in str(caught.value)
    assert "incomplete download?" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "[" * 100_000])
def test_damaged_configuration_is_named(folder, text):
    """A config.json that is no object stops the start with its name."""
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json: "):
        open_(folder)


def test_weights_without_configuration_are_refused(folder):
    """The weights alone don't say what model they are."""
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        open_(folder)


def test_other_files_are_declined_with_a_reason(tmp_path):
    """A folder or a file of another kind is left to the next format."""
    assert "no .safetensors" in open_(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"")
    assert "run code when loaded" in open_(tmp_path)
    assert "not a .safetensors file" in open_(tmp_path / "model.bin")


def test_unknown_tensor_is_named(tiny):
    """Asking for what is not there is a clear error."""
    with pytest.raises(ModelError, match="no tensor 'nope'"):
        open_(tiny).load("nope")
