"""How the samplers' inner loops are compiled: by numba, with a cache that can't go stale.

Nothing here allows LLVM to reassociate or contract floating point (no ``fastmath``):
the source alone decides the bits, on one row as on many. Machine code lies in the
platform's cache folder under a hash of this folder's sources and numba's version.
Without a folder that can be written, each start compiles anew.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import platformdirs

_Function = TypeVar("_Function", bound=Callable[..., Any])


@cache
def cache_folder() -> Path:
    """Where this version of the samplers keeps its machine code.

    numba alone would look only at the file that a compiled function stands in, and not
    at those that it is put together from.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    root = platformdirs.user_cache_path("enginebay", appauthor=False)
    return root / "numba" / f"samplers-{digest.hexdigest()[:16]}"


def inner(function: _Function) -> _Function:
    """Compiled into the functions that use it: a call would break vector lanes."""
    return cast("_Function", numba.njit(function, inline="always"))


def part(function: _Function) -> _Function:
    """Compiled once for all functions that call it: for what is long, and called seldom."""
    return cast("_Function", numba.njit(function))


def entry(function: _Function) -> _Function:
    """Compiled at the first call, or loaded from the cache folder."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = before or str(cache_folder())
    try:
        return cast("_Function", numba.njit(function, cache=True))
    except RuntimeError:
        return cast("_Function", numba.njit(function))
    finally:
        numba.config.CACHE_DIR = before
