"""The pages name what the code has: hooks, methods, plugins, options, files, commands."""

import ast
import json
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from enginebay.commands import COMMANDS
from enginebay.config import load_stack
from enginebay.conformance.schema import schema
from enginebay.hookspecs import FAMILIES
from enginebay.hookspecs.families import SLOTS
from enginebay.stack import EngineOptions

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
STACKS = (ROOT / "docs" / "stacks.md").read_text()
HOOKS = (ROOT / "docs" / "hooks.md").read_text()
CONTRACT = schema()
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
PLUGINS = [
    pytest.param(family.name, name, module, id=f"{family.name}:{name}")
    for family in FAMILIES.values()
    for name, module in GROUPS.get(family.group, {}).items()
]


def section(family):
    """A family's part of ``docs/hooks.md``."""
    (text,) = re.findall(rf"^## {family}\n(.*?)(?=^## |\Z)", HOOKS, flags=re.M | re.S)
    return text


def options(module):
    """(name, default) of a plugin's options, read from the source of module or package."""
    origin = Path(find_spec(module).origin)
    files = sorted(origin.parent.glob("*.py")) if origin.name == "__init__.py" else [origin]
    for node in (node for file in files for node in ast.parse(file.read_text()).body):
        if isinstance(node, ast.ClassDef) and node.name == "Options":
            fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
            return [(ast.unparse(item.target), ast.unparse(item.value)) for item in fields]
    return pytest.fail(f"{module} has no Options")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_hook_is_told_with_its_exact_arguments(family):
    """Signature, group and slots stand in the family's section."""
    facts, text = CONTRACT["families"][family], section(family)
    signature = f"{facts['hook']}({', '.join(facts['parameters'])}) -> {facts['returns']}"
    assert f"\n{signature}\n" in text
    assert f"`{facts['group']}`" in text
    assert all(f"`{slot}`" in text for slot in facts["slots"])
    assert "**If it raises while running:**" in text


@pytest.mark.parametrize(
    "protocol", [key for key in CONTRACT["protocols"] if key.partition(".")[0] in FAMILIES]
)
def test_every_method_is_told_with_its_parameters(protocol):
    """Of every Protocol; properties by their name."""
    family, _, name = protocol.partition(".")
    (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", section(family), flags=re.M)
    told = []
    for method, facts in CONTRACT["protocols"][protocol]["methods"].items():
        parameters = [word.partition(":")[0] for word in facts.get("parameters", ())]
        told.append(
            f"`{method}`" if "property" in facts else f"`{method}({', '.join(parameters)})`"
        )
    assert row == ", ".join(told)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_context_is_told_with_its_fields(family):
    """What a plugin is built with."""
    context = CONTRACT["families"][family]["parameters"][1].partition(": ")[2]
    fields = CONTRACT["structs"][f"{family}.{context}"]["fields"]
    row = ", ".join(f"`{field}`" for field in fields) or "nothing yet"
    assert f"| `{context}` | {row} |" in section(family)


@pytest.mark.parametrize(("family", "name", "module"), PLUGINS)
def test_every_plugin_is_told_with_its_options(family, name, module):
    """Each option with its default."""
    text = section(family)
    assert f"\n| `{name}` | " in text
    for option, default in options(module):
        assert f"\n| `{name}`: `{option}` | `{default}` | " in text


def test_every_engine_key_is_told_with_its_default():
    """As TOML writes it; and no key that is gone."""
    told = re.findall(r"^\| `engine\.(\w+)` \| `(.+?)` \| \S", STACKS, flags=re.M)
    options = EngineOptions()
    fields = EngineOptions.__struct_fields__
    assert told == [(field, json.dumps(getattr(options, field))) for field in fields]


def test_every_slot_is_told_with_what_it_holds():
    """One, one or none, or a list."""
    words = {"one": "one", "optional": "one or none", "chain": "a list"}
    for slot, family in SLOTS.items():
        assert f"| `{slot}` | {words[family.arity]} |" in STACKS


@pytest.mark.parametrize("text", re.findall(r"^```toml\n(.*?)^```", STACKS, flags=re.M | re.S))
def test_stacks_that_are_shown_load(text, tmp_path):
    """And where one adds to the door, the parent's members are all still in it."""
    path = tmp_path / "mine.toml"
    path.write_text(text)
    door = {entry.use for entry in load_stack(str(path)).chain("door")}
    assert door >= {entry.use for entry in load_stack("cpu").chain("door")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page):
    """A moved file takes its mentions along."""
    text = page.read_text()
    roots = "core|plugins|conformance|simulation|tests|docs|examples|benchmarks"
    named = re.findall(rf"`((?:{roots})/[\w./-]*)`", text)
    linked = [f"docs/{name}" for name in re.findall(r"\]\(([\w-]+\.md)\)", text)]
    assert [name for name in (*named, *linked) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_a_page_shows_exist(page):
    """Every line of a shell block that calls ``enginebay`` names a command of it."""
    blocks = re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```", page.read_text(), flags=re.M | re.S)
    shown = re.findall(r"^\$? ?enginebay ([a-z]\w*)", "\n".join(blocks), flags=re.M)
    assert [command for command in shown if command not in COMMANDS] == []
