"""Changes of the contract: minor ones an old plugin survives, major ones it may not.

Minor: a new family, Protocol (an optional capability), struct, alias, a new field with a
default, a new hook argument (plugins take those they name), a new method of an object
that the core provides. Everything else is major: removed, renamed, another type or
default, another parameter, a new method that plugins would have to have.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

Level = Literal["major", "minor"]

PROVIDED: Final = frozenset(
    {"scheduler.SequenceView", "scheduler.StepBuilder", "drafter.DraftView", "model.Builder"}
)
"""Protocols that the core implements and plugins only call."""


@dataclass(frozen=True)
class Change:
    """One difference between two schemas."""

    level: Level
    where: str
    """``family``, ``module.Class`` or ``module.Class.member``."""
    what: str

    def __str__(self) -> str:
        return f"{self.level}: {self.where}: {self.what}"

    def order(self) -> tuple[str, str]:
        """Major first, then by place."""
        return self.level, self.where


def classify(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """Every change from one schema to another, as minor or major."""
    changes: list[Change] = []
    for kind, noun, compare in (
        ("families", "family", _family),
        ("protocols", "Protocol", _class),
        ("structs", "struct", _class),
        ("aliases", "alias", _alias),
    ):
        before, after = old.get(kind, {}), new.get(kind, {})
        changes += [Change("major", name, f"{noun} removed") for name in before.keys() - after]
        changes += [Change("minor", name, f"{noun} added") for name in after.keys() - before]
        for name in before.keys() & after.keys():
            changes += compare(name, before[name], after[name])
    return changes


def versions_to_raise(
    old: dict[str, Any], new: dict[str, Any], changes: list[Change]
) -> dict[str, Level]:
    """Families whose contract changed and whose version was not raised for it.

    A shared type counts for every family that mentions it, directly or through others.
    """
    found: dict[str, Level] = {}
    for name, family in new["families"].items():
        if name not in old.get("families", {}):
            continue
        modules = _mentions(name, new) | _mentions(name, old)
        levels = {change.level for change in changes if _owner(change.where) in modules}
        if not levels:
            continue
        level: Level = "major" if "major" in levels else "minor"
        before, after = old["families"][name]["version"], family["version"]
        raised = after[0] > before[0] if level == "major" else after > before
        if not raised:
            found[name] = level
    return found


def _family(name: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change]:
    for key in ("group", "arity", "slots", "hook", "returns"):
        if before[key] != after[key]:
            yield Change("major", name, f"{key} was {before[key]!r} and is {after[key]!r}")
    if before["parameters"] != after["parameters"]:
        more = set(after["parameters"]) > set(before["parameters"])
        yield _changed(
            "minor" if more else "major", name, before["parameters"], after["parameters"]
        )


def _alias(name: str, before: str, after: str) -> Iterator[Change]:
    if before != after:
        yield _changed("major", name, before, after)


def _class(name: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change]:
    """A Protocol, or a struct; structs have fields and are built by the core or plugins."""
    for key in ("bases", "tag"):
        if before.get(key) != after.get(key):
            yield Change("major", name, f"{key} was {before.get(key)} and is {after.get(key)}")
    provided = name in PROVIDED or "fields" in after
    old, new = before["methods"], after["methods"]
    for member in old.keys() - new.keys():
        yield Change("major", f"{name}.{member}", "method removed")
    for member in new.keys() - old.keys():
        yield Change("minor" if provided else "major", f"{name}.{member}", "method added")
    for member in old.keys() & new.keys():
        if old[member] != new[member]:
            level = _signature(old[member], new[member]) if provided else "major"
            yield _changed(level, f"{name}.{member}", _shown(old[member]), _shown(new[member]))
    yield from _fields(name, before.get("fields", {}), after.get("fields", {}))


def _fields(name: str, before: dict[str, str], after: dict[str, str]) -> Iterator[Change]:
    for field in before.keys() - after.keys():
        yield Change("major", f"{name}.{field}", "field removed")
    for field in after.keys() - before.keys():
        optional = " = " in after[field]
        what = "field with a default added" if optional else "field without a default added"
        yield Change("minor" if optional else "major", f"{name}.{field}", what)
    for field in before.keys() & after.keys():
        if before[field] != after[field]:
            gained = after[field].startswith(before[field] + " = ")
            level: Level = "minor" if gained else "major"
            yield _changed(level, f"{name}.{field}", before[field], after[field])


def _signature(before: dict[str, Any], after: dict[str, Any]) -> Level:
    """Of a method that plugins call: new parameters with a default do no harm."""
    old, new = before.get("parameters", []), after.get("parameters", [])
    if before.get("returns") != after.get("returns") or "property" in {*before, *after}:
        return "major"
    added = new[len(old) :]
    harmless = new[: len(old)] == old and all(word == "*" or " = " in word for word in added)
    return "minor" if harmless else "major"


def _changed(level: Level, where: str, before: object, after: object) -> Change:
    return Change(level, where, f"was {before} and is {after}")


def _shown(member: dict[str, Any]) -> str:
    if "property" in member:
        return f"property {member['property']}"
    return f"({', '.join(member['parameters'])}) -> {member['returns']}"


def _owner(where: str) -> str:
    """``module.Class`` of a change, or the family itself."""
    return ".".join(where.split(".")[:2])


def _mentions(family: str, schema: dict[str, Any]) -> set[str]:
    """The family, its own classes, and every class or alias that they lead to."""
    definitions: dict[str, str] = {}
    for kind in ("protocols", "structs", "aliases"):
        definitions |= {key: str(value) for key, value in schema.get(kind, {}).items()}
    places: dict[str, list[str]] = {}
    for key in definitions:
        places.setdefault(key.rpartition(".")[2], []).append(key)
    pending = [key for key in definitions if key.startswith(f"{family}.")]
    pending.append(family)
    found: set[str] = set()
    while pending:
        key = pending.pop()
        if key in found:
            continue
        found.add(key)
        text = definitions.get(key) or str(schema.get("families", {}).get(key, ""))
        for word in set(re.findall(r"\w+", text)):
            pending += places.get(word, [])
    return found
