"""The contract as plain data: every hook, Protocol, struct and alias, from the source.

``python -m enginebay.conformance.schema`` tells how the code differs from the stored
``contract.json``; with ``--write`` the stored one is replaced, on purpose. The source is
read, not imported: annotations stand as they were written, and no tensor library loads.
"""

import ast
import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from enginebay.hookspecs import FAMILIES

from .changes import Change, classify, versions_to_raise

Schema = dict[str, Any]
"""``families``, ``protocols``, ``structs`` and ``aliases``, each by name. Members of a
class are strings as in the source: ``"str | None = None"``, ``"build: StepBuilder"``."""

STORED: Final = Path(__file__).with_name("contract.json")
SHARED: Final = ("flow", "batch", "candidates")
"""Modules of the core whose types appear in contracts; names are ``module.Class``."""


def schema() -> Schema:
    """The contract of the code as it stands."""
    result: Schema = {"families": {}, "protocols": {}, "structs": {}, "aliases": {}}
    for module in SHARED:
        _read_module(f"enginebay.{module}", module, result)
    for family in FAMILIES.values():
        hook = _read_module(family.module, family.name, result)
        result["families"][family.name] = {
            "version": list(family.version),
            "group": family.group,
            "arity": family.arity,
            "slots": list(family.slots),
            "hook": family.hook,
            **hook[family.hook],
        }
    return result


def stored() -> Schema:
    """The contract that ships with this version."""
    loaded: Schema = json.loads(STORED.read_text(encoding="utf-8"))
    return loaded


def report(old: Schema, new: Schema) -> str:
    """What changed, which versions to raise and how; empty when nothing did."""
    changes = classify(old, new)
    if not changes:
        return ""
    lines = [f"The contract differs from {STORED.name}:"]
    lines += [f"  {change}" for change in sorted(changes, key=Change.order)]
    for name, level in versions_to_raise(old, new, changes).items():
        version = ".".join(str(number) for number in new["families"][name]["version"])
        lines.append(f"  raise the {level} version of {name} ({version}) in hookspecs/families.py")
    lines.append("To change it on purpose: python -m enginebay.conformance.schema --write")
    return "\n".join(lines)


def write() -> None:
    """Store the contract of the code as it stands."""
    text = json.dumps(schema(), indent=1, sort_keys=True, ensure_ascii=False)
    STORED.write_text(text + "\n", encoding="utf-8")


def _read_module(module: str, name: str, result: Schema) -> dict[str, Any]:
    """Add a module's classes and aliases; return its hooks by name."""
    hooks = {}
    for node in _statements(module):
        if isinstance(node, ast.ClassDef):
            _read_class(node, name, result)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            alias = node.targets[0].id
            if alias[0].isupper() and not alias.isupper():
                result["aliases"][f"{name}.{alias}"] = _type(node.value)
        elif isinstance(node, ast.FunctionDef) and _decorated(node, "hookspec"):
            hooks[node.name] = _signature(node, method=False)
    return hooks


def _statements(module: str) -> Iterator[ast.stmt]:
    """Of a module; of a package those of all its modules, for it exports their names."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        msg = f"{module} has no source file"
        raise ImportError(msg)
    files = [Path(spec.origin)]
    if spec.submodule_search_locations is not None:
        files = sorted(files[0].parent.glob("*.py"))
    for file in files:
        yield from ast.parse(file.read_text(encoding="utf-8")).body


def _read_class(node: ast.ClassDef, module: str, result: Schema) -> None:
    bases = [ast.unparse(base) for base in node.bases]
    key = f"{module}.{node.name}"
    if "Protocol" in bases:
        bases.remove("Protocol")
        result["protocols"][key] = {"bases": bases, "methods": _methods(node)}
    elif "Frozen" in bases or _decorated(node, "dataclass"):
        tags = [ast.unparse(word.value) for word in node.keywords if word.arg == "tag"]
        result["structs"][key] = {"fields": _fields(node), "methods": _methods(node)}
        if tags:
            result["structs"][key]["tag"] = ast.literal_eval(tags[0])
    elif node.name[0].isupper() and not bases and not node.keywords:
        result["structs"][key] = {"fields": _fields(node), "methods": _methods(node)}


def _fields(node: ast.ClassDef) -> dict[str, str]:
    return {
        item.target.id: _type(item.annotation)
        + ("" if item.value is None else f" = {ast.unparse(item.value)}")
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def _methods(node: ast.ClassDef) -> dict[str, Any]:
    return {
        item.name: {"property": _type(item.returns)}
        if _decorated(item, "property")
        else _signature(item, method=True)
        for item in node.body
        if isinstance(item, ast.FunctionDef)
        and (not item.name.startswith("_") or item.name in {"__init__", "__call__"})
    }


def _signature(node: ast.FunctionDef, *, method: bool) -> dict[str, Any]:
    """Parameters in order, a lone ``*`` before those that go by name only."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    words = [_parameter(a, d) for a, d in zip(positional, defaults, strict=True)][method:]
    if arguments.vararg is not None:
        words.append("*" + _parameter(arguments.vararg, None))
    elif arguments.kwonlyargs:
        words.append("*")
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    words += [_parameter(argument, default) for argument, default in pairs]
    if arguments.kwarg is not None:
        words.append("**" + _parameter(arguments.kwarg, None))
    return {"parameters": words, "returns": _type(node.returns)}


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    text = f"{argument.arg}: {_type(argument.annotation)}"
    return text if default is None else f"{text} = {ast.unparse(default)}"


def _type(node: ast.expr | None) -> str:
    """A quoted annotation reads like an unquoted one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return ast.unparse(ast.parse(node.value, mode="eval"))
    return "None" if node is None else ast.unparse(node)


def _decorated(node: ast.ClassDef | ast.FunctionDef, name: str) -> bool:
    return any(ast.unparse(item).partition("(")[0] == name for item in node.decorator_list)


def main(arguments: list[str]) -> int:
    """Report the difference, or store it. :return: 1 when they differ and nothing was stored"""
    told = report(stored() if STORED.exists() else {}, schema())
    if "--write" in arguments:
        write()
        told = told and told.rpartition("\n")[0] + f"\nStored in {STORED}."
    print(told or "The contract is as stored.")
    return int(bool(told) and "--write" not in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
