"""Enginebay: an LLM inference engine in which every part is a plugin."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Before anything loads torch: libgomp reads how its threads wait when it is loaded.
from .threads import wait_passively

if TYPE_CHECKING:
    from .engine import Engine
    from .flow import Request, SamplingParams
    from .hookspecs.markers import hookimpl
    from .llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "Engine", "Request", "SamplingParams", "hookimpl"]

wait_passively()

_HOMES = {
    "Engine": ".engine",
    "LLM": ".llm",
    "Request": ".flow",
    "SamplingParams": ".flow",
    "hookimpl": ".hookspecs.markers",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: ``--help`` must not load torch."""
    home = _HOMES.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(home, __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
