"""Hub models: what is asked of huggingface_hub, and what is said when it can't answer."""

import huggingface_hub
import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from enginebay.errors import ModelError
from enginebay.hookspecs.source import SourceContext
from enginebay.plugins.sources import hub as plugin


@pytest.fixture
def source(tmp_path):
    context = SourceContext(cache=tmp_path, progress=lambda *_: None)
    return plugin.enginebay_source(plugin.Options(), context)


def snapshot(monkeypatch, answer):
    """Replace the download by a folder, or by an exception; returns the calls."""
    calls = []

    def download(repository, **arguments):
        calls.append((repository, arguments))
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return calls


@pytest.mark.parametrize(
    ("reference", "repository", "revision"),
    [
        ("acme/tiny", "acme/tiny", None),
        ("hub:acme/tiny-1.5_b", "acme/tiny-1.5_b", None),
        ("acme/tiny@refs/pr/1", "acme/tiny", "refs/pr/1"),
    ],
)
def test_snapshot_is_asked_for(source, tmp_path, monkeypatch, reference, repository, revision):
    """Weights and text files of one revision; the commit is the provenance."""
    folder = tmp_path / "c0ffee"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    calls = snapshot(monkeypatch, folder)
    found = source.resolve(reference)
    assert calls[0][0] == repository
    assert calls[0][1]["revision"] == revision
    assert "*.safetensors" in calls[0][1]["allow_patterns"]
    assert not any(pattern.endswith(".bin") for pattern in calls[0][1]["allow_patterns"])
    assert (found.path, found.revision) == (str(folder), "c0ffee")
    assert found.origin == f"hub:{repository}@c0ffee"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LocalEntryNotFoundError("no connection"), "not in the Hub's cache, and no connection"),
        (OSError("disk full"), "can't be fetched: disk full"),
        (ValueError(""), "can't be fetched: ValueError"),
    ],
)
def test_failure_is_a_reason(source, monkeypatch, error, reason):
    """The next source is asked; with the prefix nobody else can have it."""
    snapshot(monkeypatch, error)
    assert reason in source.resolve("acme/tiny")
    with pytest.raises(ModelError, match="model 'hub:acme/tiny': acme/tiny"):
        source.resolve("hub:acme/tiny")


def test_http_error_is_one_line(source, monkeypatch):
    """The library's long texts are cut to their first line."""
    httpx = pytest.importorskip("httpx")
    response = httpx.Response(404, request=httpx.Request("GET", "http://localhost"))
    snapshot(monkeypatch, HfHubHTTPError("404 Not Found\nlong advice", response=response))
    answer = source.resolve("acme/tiny")
    assert "can't be fetched" in answer
    assert "long advice" not in answer


def test_offline_asks_the_cache_only(tmp_path, monkeypatch):
    """The network is not touched, and the answer says why."""
    calls = snapshot(monkeypatch, LocalEntryNotFoundError("x"))
    context = SourceContext(cache=tmp_path, progress=lambda *_: None, offline=True)
    answer = plugin.enginebay_source(plugin.Options(), context).resolve("acme/tiny")
    assert "the network may not be used" in answer
    assert calls[0][1]["local_files_only"] is True


def test_repository_without_matching_files(source, tmp_path, monkeypatch):
    """An empty snapshot names the patterns."""
    (tmp_path / "empty").mkdir()
    snapshot(monkeypatch, tmp_path / "empty")
    assert "no files that match" in source.resolve("acme/tiny")


def test_missing_package_is_named_with_its_fix(source, monkeypatch):
    """The extra is optional."""
    monkeypatch.setattr(plugin, "find_spec", lambda name: None)
    assert "pip install huggingface_hub" in source.resolve("acme/tiny")


@pytest.mark.parametrize("reference", ["tiny", "a/b/c", "pypi:x", "/abs/path", "a b/c"])
def test_other_references_are_passed_on(source, reference):
    """They can't be repositories."""
    assert "is no repository" in source.resolve(reference)
