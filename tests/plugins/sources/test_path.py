"""Local models: found, or a reason; the revision follows the content."""

import os

import pytest

from enginebay.conformance.tiny import write_tiny
from enginebay.errors import ModelError
from enginebay.hookspecs.source import SourceContext
from enginebay.plugins.sources import path as plugin


def source(tmp_path, **options):
    context = SourceContext(cache=tmp_path / "cache", progress=lambda *_: None)
    return plugin.enginebay_source(plugin.Options(**options), context)


@pytest.fixture
def folder(tmp_path):
    return write_tiny(tmp_path / "models" / "tiny")


def test_folder_and_file_are_found(tmp_path, folder):
    """Absolute, relative to the root, and a single file."""
    absolute = source(tmp_path).resolve(str(folder))
    assert absolute.path == str(folder)
    relative = source(tmp_path, root=str(tmp_path / "models")).resolve("tiny")
    assert (relative.path, relative.revision) == (absolute.path, absolute.revision)
    single = source(tmp_path).resolve(str(folder / "model.safetensors"))
    assert single.path.endswith("model.safetensors")


def test_relative_path_starts_in_the_working_folder(tmp_path, folder, monkeypatch):
    """As a person in a shell expects, home folder included."""
    monkeypatch.chdir(folder.parent)
    assert source(tmp_path).resolve("tiny").path == str(folder)
    assert source(tmp_path).resolve("./tiny").path == str(folder)
    monkeypatch.setenv("HOME", str(folder.parent))
    assert source(tmp_path).resolve("~/tiny").path == str(folder)


def test_revision_follows_the_content(tmp_path, folder):
    """Touching a file changes nothing; a changed weight, config or tokenizer does."""
    revision = source(tmp_path).resolve(str(folder)).revision
    os.utime(folder / "model.safetensors", (1, 1))
    (folder / "README.md").write_text("about")
    assert source(tmp_path).resolve(str(folder)).revision == revision
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        data = bytearray((folder / name).read_bytes())
        data[-9] ^= 1
        (folder / name).write_bytes(data)
        changed = source(tmp_path).resolve(str(folder)).revision
        assert changed != revision
        revision = changed


def test_large_file_counts_by_its_samples(tmp_path):
    """A file of several MB: beginning, middle and end are looked at."""
    big = tmp_path / "big.gguf"
    big.write_bytes(bytes(5_000_000))
    revisions = {source(tmp_path).resolve(str(big)).revision}
    for at in (0, 2_500_000 // 63 * 63, 4_999_999):
        data = bytearray(5_000_000)
        data[at : at + 80_000] = b"x" * len(data[at : at + 80_000])
        big.write_bytes(data)
        revisions.add(source(tmp_path).resolve(str(big)).revision)
    assert len(revisions) == 4


def test_what_is_missing_is_said(tmp_path):
    """A name that could be another source's gets a reason, to pass on."""
    assert "no file or folder" in source(tmp_path).resolve("owner/name")


@pytest.mark.parametrize("reference", ["/no/such", "./no", "../no", "~/no-such", "no/such.gguf"])
def test_a_plain_path_that_is_missing_stops(tmp_path, reference):
    """Nobody else can have it, so the search ends with the reason."""
    with pytest.raises(ModelError, match="no file or folder"):
        source(tmp_path).resolve(reference)


def test_folder_without_weights_lists_what_it_has(tmp_path):
    """The usual cause is one folder too high, or a broken download."""
    (tmp_path / "tiny").mkdir()
    with pytest.raises(ModelError, match="it has nothing"):
        source(tmp_path).resolve(str(tmp_path / "tiny"))
    (tmp_path / "tiny" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"no \*\.safetensors or \*\.gguf; it has config\.json"):
        source(tmp_path).resolve(str(tmp_path / "tiny"))
    answer = source(tmp_path, root=str(tmp_path)).resolve("tiny")
    assert "it has config.json" in answer
