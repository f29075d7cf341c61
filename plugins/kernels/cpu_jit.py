"""How the CPU kernels are compiled: lazily, by numba, with a cache that can't go stale.

Nothing here allows LLVM to reassociate or contract floating point (no ``fastmath``):
the source alone decides the bits, however a loop is vectorized.

Machine code is kept in the platform's cache folder, under a hash of the kernels'
sources and numba's version; numba itself keys it by CPU. numba writes each file under
a temporary name and renames it, so two processes may compile at once. A user's own
``NUMBA_CACHE_DIR`` is respected. Without any writable folder each start compiles anew.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import threading
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba
import platformdirs
from numba import types

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")

_LOCK = threading.RLock()
"""numba reads its cache folder from a module, which is set for one decorator at a time."""

TASK_SIGNATURE = types.void(types.intp, types.intp, types.intp)


@cache
def cache_folder() -> Path:
    """Where this version of the kernels keeps its machine code."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(Path(__file__).parent.glob("cpu_*.py")):
        digest.update(source.read_bytes())
    root = platformdirs.user_cache_path("enginebay", appauthor=False)
    return root / "numba" / digest.hexdigest()[:16]


def inlined(function: Function) -> Function:
    """Mark a function that only compiled code calls; it becomes part of its callers."""
    return cast("Function", numba.njit(function, error_model="numpy"))


def _cached(make: Callable[[bool], Any]) -> Any:
    """Run a numba decorator, ``make(keep)``, with our cache folder if it can be written."""
    with _LOCK:
        before = numba.config.CACHE_DIR
        folder = Path(before) if before else cache_folder()
        numba.config.CACHE_DIR = str(folder)
        try:
            return make(_writable(folder))
        finally:
            numba.config.CACHE_DIR = before


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


class Entry:
    """A function of integers that Python calls; compiled, or loaded, when first needed."""

    def __init__(self, function: Callable[..., Any], *, nogil: bool) -> None:
        self.function = function
        self.nogil = nogil

    @cached_property
    def call(self) -> Callable[..., Any]:
        """The dispatcher; hold on to it where a microsecond counts."""
        return cast(
            "Callable[..., Any]",
            _cached(
                lambda keep: numba.njit(
                    self.function, error_model="numpy", nogil=self.nogil, cache=keep
                )
            ),
        )

    def compile(self) -> None:
        """Compile it now, or load it."""
        self.call.compile((types.intp,) * len(inspect.signature(self.function).parameters))  # type: ignore[attr-defined]


class Task:
    """One piece of a job that the pool runs: ``(arguments, item, slot)``, all integers.

    ``arguments`` is the address of the job's argument block, ``item`` the index of the
    piece, ``slot`` tells which of the pool's threads runs it (for scratch memory).
    """

    def __init__(self, function: Callable[[int, int, int], None]) -> None:
        self.function = function

    def compile(self) -> None:
        """Compile it now, or load it."""
        self.compiled  # noqa: B018  the property compiles

    @cached_property
    def compiled(self) -> Any:
        """numba's C callback."""
        return _cached(
            lambda keep: numba.cfunc(TASK_SIGNATURE, error_model="numpy", cache=keep)(self.function)
        )

    @cached_property
    def address(self) -> int:
        """Of the machine code."""
        return cast("int", self.compiled.address)
