"""Names and hashes: what a served model is called, and what makes two answers alike."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .hookspecs.families import SLOTS

if TYPE_CHECKING:
    from .hookspecs.model import ModelSpec
    from .hookspecs.source import Files
    from .registry import Registry
    from .stack import Stack


def served_name(reference: str) -> str:
    """A model's name for callers, from its reference."""
    if reference.startswith("pypi:"):
        return reference.removeprefix("pypi:").split("#")[0].split("==")[0]
    path = Path(reference)
    if path.exists():
        return path.resolve().name.removesuffix(".gguf")
    return reference


def cache_identity(stack: Stack, files: Files, spec: ModelSpec) -> str:
    """What every request's hash chain starts from: model revision,
    quantization and KV format, positional policy."""
    quant = stack.one("quant")
    rope = msgspec.to_builtins(spec.rope)
    engine = stack.engine
    formats = [quant.use, quant.options, engine.dtype, engine.kv_cache_dtype]
    return digest([files.revision, *formats, rope])


def service_version(stack: Stack, registry: Registry, files: Files) -> str:
    """A hash over every chosen plugin (distribution, version, options), the model's
    revision and the contract versions: two servers with the same one answer alike."""
    plugins = []
    for slot, entries in sorted(stack.slots.items()):
        family = SLOTS[slot]
        for entry in entries:
            found = registry.loaded[family.name, entry.use][0]
            # Where a transport listens changes no answer.
            options = {} if slot == "transports" else entry.options
            chosen = [slot, entry.name, entry.use, found.distribution, found.version]
            plugins.append([*chosen, options, family.version])
    return digest([plugins, files.revision, msgspec.to_builtins(stack.engine)])[:16]


def digest(parts: list[object]) -> str:
    """SHA-256 of plain data; the encoding keeps ("a", "bc") and ("ab", "c") apart."""
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
