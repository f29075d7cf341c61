"""How the CPU kernels are compiled and cached."""

import os
import subprocess
import sys

import numba
import pytest

from enginebay.plugins.kernels import cpu_jit
from enginebay.plugins.kernels.cpu_jit import Entry


def _double(x: int) -> int:
    return 2 * x


def test_machine_code_is_kept_in_the_cache_folder(monkeypatch, tmp_path):
    """Index and code land there, and a second definition loads them."""
    monkeypatch.setattr(cpu_jit, "cache_folder", lambda: tmp_path / "kernels")
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    first, second = Entry(_double, nogil=False), Entry(_double, nogil=False)
    first.compile()
    assert {path.suffix for path in tmp_path.rglob("*.nb*")} == {".nbi", ".nbc"}
    second.compile()
    assert sum(second.call.stats.cache_hits.values()) == 1
    assert second.call(21) == 42


def test_the_users_own_cache_folder_is_respected(monkeypatch, tmp_path):
    """``NUMBA_CACHE_DIR`` wins, and is what it was afterwards."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    Entry(_double, nogil=False).compile()
    assert list(tmp_path.rglob("*.nbi"))
    assert str(tmp_path) == numba.config.CACHE_DIR


def test_without_a_writable_folder_it_still_runs(monkeypatch, tmp_path):
    """A read-only machine compiles at each start."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(cpu_jit, "cache_folder", lambda: tmp_path / "file" / "kernels")
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    assert Entry(_double, nogil=False).call(4) == 8


def test_the_folder_changes_with_the_sources(monkeypatch, tmp_path):
    """Code that was compiled from other sources is never looked at."""
    source = tmp_path / "cpu_jit.py"
    source.write_text("one")
    monkeypatch.setattr(cpu_jit, "__file__", str(source))
    folders = set()
    for text in ("one", "two", "one"):
        source.write_text(text)
        cpu_jit.cache_folder.cache_clear()
        folders.add(cpu_jit.cache_folder())
    cpu_jit.cache_folder.cache_clear()
    assert len(folders) == 2


PROGRAM = """
from enginebay.plugins.kernels.cpu_pool import ALONE
ALONE.call(0, 0, 0)
print("done")
"""


@pytest.mark.skipif(os.name != "posix", reason="kernels of POSIX systems")
def test_two_processes_may_compile_at_once(tmp_path):
    """Both start with an empty cache, and both answer."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    assert [process.communicate()[0].strip() for process in processes] == ["done", "done"]
    assert list(tmp_path.rglob("*.nbc"))
