"""Safetensors folders: which file defines a tensor, and what damage is noticed."""

import json
import shutil

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
        stream.write(b"\0" * path.stat().st_size)
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


def test_other_weights_beside_numbered_files_are_left_alone(folder):
    """Case 68 without an index: a vendor's copy and an adapter are no part of the model."""
    reference = load_file(folder / "model.safetensors")
    shard(folder)
    (folder / INDEX).unlink()
    wrong = {name: torch.full_like(tensor, 7.0) for name, tensor in reference.items()}
    save_file(wrong, folder / "consolidated.safetensors")
    save_file(wrong, folder / "adapter_model.safetensors")
    assert same(open_(folder), reference)


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
