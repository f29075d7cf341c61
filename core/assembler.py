"""The assembler: one slot of a stack after another becomes a built plugin."""

from __future__ import annotations

import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import platformdirs

from .errors import ModelError, StackError
from .hookspecs.families import SLOTS
from .hookspecs.format import FormatContext
from .hookspecs.model import Limits, ModelContext
from .hookspecs.sink import SinkContext
from .hookspecs.source import SourceContext
from .ledger.process import resident
from .locate import locate, open_checkpoint
from .registry import Registry, parse_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from .hookspecs.format import Checkpoint
    from .hookspecs.model import ModelFamily, ModelSpec
    from .hookspecs.sink import SinkKind
    from .hookspecs.source import Files, Progress
    from .stack import Entry, Stack

LEAST = {
    "max_model_len": 0,
    "max_step_tokens": 1,
    "max_sequences": 1,
    "block_size": 1,
    "num_blocks": 0,
    "num_drafts": 0,
    "max_logprobs": 0,
    "stall_seconds": 0,
    "probe_tolerance": 0,
}
"""The smallest value of each number in the ``[engine]`` table."""
AUTOMATIC = {
    "max_model_len": "; 0 takes the model's own limit",
    "num_blocks": "; 0 makes as many as engine.kv_memory holds",
}


def no_progress(what: str, done: int, total: int | None) -> None:
    """A display that shows nothing."""


class Assembler:
    """Builds a stack's plugins, one slot after another."""

    def __init__(self, stack: Stack, progress: Progress = no_progress) -> None:
        self.stack = stack
        self.registry = Registry()
        self.seconds: dict[str, float] = {}
        self.before_load = 0
        """Bytes that the process took once every plugin was imported."""
        self._progress = progress
        self._since = time.perf_counter()

    def one(self, slot: str, context: object) -> Any:
        """What the one plugin of a slot built."""
        return self.registry.build(SLOTS[slot], self.stack.one(slot), context)

    def chain(self, slot: str, context: Callable[[Entry], object]) -> list[tuple[str, Any]]:
        """(name, built) of a chain, in order."""
        return [
            (entry.name, self.registry.build(SLOTS[slot], entry, context(entry)))
            for entry in self.stack.chain(slot)
        ]

    @cached_property
    def sinks(self) -> dict[str, SinkKind]:
        """What transports and programs put answers together with; built once."""
        return dict(self.chain("sinks", lambda entry: SinkContext()))

    def load_all(self) -> None:
        """Import and validate every chosen plugin: a wrong one stops the start at once,
        before a model is fetched.

        :raises StackError: nothing could read a prompt
        """
        if not self.stack.chain("frontends"):
            msg = f"stack {self.stack.name!r}: frontends is empty; add 'hf-chat' or 'completion'"
            raise StackError(msg)
        for slot, entries in self.stack.slots.items():
            for entry in entries:
                module = self.registry.load(SLOTS[slot], entry.use)
                parse_options(entry, module.Options)
        self.before_load, _ = resident()

    def lap(self, phase: str) -> None:
        """Note how long a phase took."""
        now = time.perf_counter()
        self.seconds[phase] = now - self._since
        self._since = now

    def checkpoint(self) -> tuple[Files, Checkpoint]:
        """Find the model and open its files."""
        options = self.stack.engine
        cache = Path(platformdirs.user_cache_dir("enginebay"))
        sources = self.chain(
            "sources",
            lambda entry: SourceContext(
                cache=cache / entry.name, progress=self._progress, offline=options.offline
            ),
        )
        formats = self.chain("formats", lambda entry: FormatContext())
        files = locate(sources, options.model)
        return files, open_checkpoint(formats, files)

    def model(self, checkpoint: Checkpoint) -> tuple[ModelFamily, ModelSpec]:
        """Choose the family for the checkpoint's architecture."""
        families = self.chain("models", lambda entry: ModelContext())
        wanted = checkpoint.config.get("architectures") or ["(none)"]
        for _, family in families:
            if wanted[0] in family.architectures:
                spec = family.spec(checkpoint.config)
                ends = (*spec.eos_token_ids, *checkpoint.text.eos_token_ids)
                return family, msgspec.structs.replace(
                    spec, eos_token_ids=tuple(dict.fromkeys(ends))
                )
        known = sorted(a for _, family in families for a in family.architectures)
        msg = (
            f"{checkpoint.location}: architecture {wanted[0]!r} is not one of this stack's "
            f"models ({', '.join(known)}); add a model plugin to `models`"
        )
        raise ModelError(msg)

    def limits(self, spec: ModelSpec) -> Limits:
        """The engine's bounds; blocks are known once the executor has its pool.

        :raises StackError: a bound under which nothing could ever be computed
        """
        options = self.stack.engine
        for key, least in LEAST.items():
            value = getattr(options, key)
            if not value >= least:  # NaN is none either
                zero = AUTOMATIC.get(key, "")
                raise StackError(f"engine.{key} = {value}: must be {least} or more{zero}")
        if options.max_model_len > spec.max_positions:
            msg = (
                f"engine.max_model_len = {options.max_model_len}: the model has "
                f"{spec.max_positions} positions; give that or fewer, or 0 for all of them"
            )
            raise StackError(msg)
        longest = options.max_model_len or spec.max_positions
        return Limits(
            max_model_len=longest,
            max_step_tokens=options.max_step_tokens,
            max_sequences=options.max_sequences,
            block_size=options.block_size,
            num_blocks=options.num_blocks,
            vocab_size=spec.vocab_size,
        )
