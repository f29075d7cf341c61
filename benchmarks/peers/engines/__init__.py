"""The engines: which there are, what runs each, and in which form it takes the weights.

A module here is imported only in the engine's own process, which may be another Python
with other packages: it needs nothing but the engine, ``numpy`` and this package.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

Mark = Callable[[int], None]
"""Told how many tokens have come so far, whenever some did."""


@dataclass(frozen=True)
class Kind:
    """An engine, in one or several variants."""

    module: str
    variants: tuple[tuple[str, str], ...]
    """(what follows the name in a row's name, the form of the weights) of each."""


KINDS = {
    "openvino": Kind("openvino", (("", "q8_0"),)),
    "llama.cpp": Kind("llama_cpp", ((":q8_0", "q8_0"), (":stored", "gguf"))),
    "ctranslate2": Kind("ctranslate2", (("", "folder"),)),
    "vllm": Kind("vllm", (("", "folder"),)),
    "transformers": Kind("transformers", (("", "folder"),)),
}
"""Peers by name. Enginebay itself has a row for each stack."""


@dataclass(frozen=True)
class Setup:
    """What an engine is started with."""

    module: str
    variant: str
    """The stack of enginebay; of others, the form of the weights."""
    weights: str
    """The model as enginebay is told it; for others a file or folder on disk."""
    work: str
    """A folder for what an engine converts for itself."""
    threads: int
    longest: int
    """Tokens of the longest sequence."""
    most: int
    """Sequences at once, at most."""

    def as_dict(self) -> dict[str, Any]:
        """For a JSON line."""
        return asdict(self)


@dataclass(frozen=True)
class Facts:
    """What an engine says of itself, for the table."""

    version: str
    weights: str
    kv: str
    bits: str
    """``float32``, ``8-bit`` or ``4-bit``: whom its figures are held against."""
    threads: int
    notes: str = ""


class Engine(Protocol):
    """One engine with a model loaded."""

    facts: Facts

    def generate(self, prompts: list[list[int]], tokens: int, mark: Mark | None) -> list[list[int]]:
        """Continue all prompts at once, greedily, by exactly ``tokens`` tokens each.

        :param mark: with a single prompt only: called as tokens come
        """
