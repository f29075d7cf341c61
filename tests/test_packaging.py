"""What is on disk, what is packaged, and what is announced are the same."""

import ast
import inspect
import textwrap
import tomllib
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

import enginebay
from enginebay.hookspecs import FAMILIES

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
FOLDERS = {
    "enginebay": "core",
    "enginebay.plugins": "plugins",
    "enginebay.conformance": "conformance",
    "enginebay.simulation": "simulation",
}
GROUPS = PYPROJECT["project"]["entry-points"]
PLUGINS = [
    pytest.param(family, name, module, id=f"{family.name}:{name}")
    for family in FAMILIES.values()
    for name, module in GROUPS.get(family.group, {}).items()
]
SOURCES = sorted(
    path.relative_to(ROOT) for folder in FOLDERS.values() for path in (ROOT / folder).rglob("*.py")
)
MAX_LINES = 250
VAGUE = {"utils.py", "util.py", "base.py", "manager.py", "helpers.py", "common.py", "misc.py"}


def on_disk():
    """Import names of all packages under the three roots."""
    for package, folder in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT / folder).parts
            yield ".".join((package, *parts))


def module_file(name):
    """The file of a module, or of a package's ``__init__``."""
    root = max((root for root in FOLDERS if name.startswith(root)), key=len)
    parts = name.removeprefix(root).strip(".").split(".")
    path = ROOT.joinpath(FOLDERS[root], *parts)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def test_every_package_folder_is_packaged():
    """A folder missing from the list would be missing from the wheel."""
    assert SETUPTOOLS["package-dir"] == FOLDERS
    assert sorted(SETUPTOOLS["packages"]) == sorted(on_disk())


def test_every_folder_with_source_is_a_package():
    """Without an ``__init__`` its files would be left out silently."""
    for source in SOURCES:
        assert (ROOT / source.parent / "__init__.py").exists(), source.parent


def test_types_and_data_are_packaged():
    """The marker of typed packages, stacks and the stored contract travel along."""
    patterns = SETUPTOOLS["package-data"]["*"]
    for folder in FOLDERS.values():
        assert (ROOT / folder / "py.typed").exists()
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix != ".py" and path.parent.name != "__pycache__":
                assert any(path.match(pattern) for pattern in patterns), path


def test_the_version_is_told_once():
    """The package and its metadata agree."""
    assert enginebay.__version__ == PYPROJECT["project"]["version"]


def test_every_group_belongs_to_a_family():
    """A misspelt group would never be looked at."""
    known = {family.group for family in FAMILIES.values()} | {"enginebay.stacks"}
    assert GROUPS.keys() <= known


def test_every_entry_point_has_its_module():
    """A name without a module fails only when a user chooses it."""
    missing = [
        f"{group}:{name} -> {module}"
        for group, names in GROUPS.items()
        for name, module in names.items()
        if not module_file(module).exists()
    ]
    assert missing == []


@pytest.mark.parametrize(("family", "name", "module"), PLUGINS)
def test_a_plugin_module_is_complete(family, name, module):
    """It has a docstring, its contract version, documented options and one building hook."""
    plugin = import_module(module)
    assert plugin.__doc__
    assert family.version == plugin.CONTRACT
    assert issubclass(plugin.Options, msgspec.Struct)
    assert plugin.Options.__struct_config__.frozen
    assert plugin.Options.__struct_config__.forbid_unknown_fields
    plugin.Options()
    hooks = [member for member in vars(plugin) if member.startswith("enginebay_")]
    assert hooks == [family.hook]
    assert getattr(plugin, family.hook).enginebay_impl
    assert undocumented(plugin.Options) == []


def undocumented(options):
    """Fields without a docstring below them: the options are their own documentation."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(options))).body
    assert isinstance(node, ast.ClassDef)
    fields = []
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(item, ast.AnnAssign):
            told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            fields += [] if told else [ast.unparse(item.target)]
    return fields


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_a_file_is_one_noun_of_one_screenful_or_two(source):
    """At most 250 lines, and a name that says what is inside."""
    assert len((ROOT / source).read_text().splitlines()) <= MAX_LINES
    assert source.name not in VAGUE
    assert source not in (Path("core/plugins.py"), Path("core/conformance.py"))
