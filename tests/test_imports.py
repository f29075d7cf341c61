"""What loads what: the front door is light, the core knows no plugin, the suite no pytest."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "numba", "transformers", "numpy", "tokenizers", "starlette", "triton")


def loaded_by(code):
    """Heavy modules in a fresh interpreter after ``code``; its output must be clean."""
    probe = f"import sys\n{code}\nprint([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout.splitlines()[-1])


def test_importing_the_package_loads_nothing_heavy():
    """``import enginebay`` and its plain data are quick."""
    assert (
        loaded_by("import enginebay, enginebay.flow; enginebay.SamplingParams(temperature=1)") == []
    )


def test_the_command_line_answers_help_without_loading_anything_heavy():
    """``enginebay --help`` must not wait for a tensor library."""
    code = (
        "from enginebay.commands import main\n"
        "sys.argv = ['enginebay', '--help']\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code"
    )
    assert loaded_by(code) == []


def test_listing_plugins_loads_none_of_them():
    """Discovery reads metadata; a broken plugin that nobody chose breaks nothing."""
    code = (
        "from enginebay.registry import discover\n"
        "assert discover()\n"
        "assert not any(m.startswith('enginebay.plugins') for m in sys.modules)"
    )
    assert loaded_by(code) == []


def imports(tree):
    """Dotted names of everything imported; relative ones keep their leading dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (f"{node.module}." if node.module else "")
            yield from (module + name.name for name in node.names)


def texts(tree):
    """Strings that are not documentation: a module may be imported by its name."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in documentation:
            yield str(node.value)


def files(folder):
    paths = sorted((ROOT / folder).rglob("*.py"))
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in paths]


@pytest.mark.parametrize("path", files("core"))
def test_the_core_imports_no_plugin(path):
    """Not by name, not relatively, not by a string: plugins are found by entry point."""
    tree = ast.parse(path.read_text())
    named = [name for name in (*imports(tree), *texts(tree)) if "enginebay.plugins" in name]
    relative = [name for name in imports(tree) if name.lstrip(".").split(".")[0] == "plugins"]
    assert named + relative == []


@pytest.mark.parametrize("path", [*files("conformance"), *files("simulation")])
def test_the_suite_needs_no_test_framework(path):
    """Anyone runs it against their plugin, with or without pytest."""
    tree = ast.parse(path.read_text())
    found = [name for name in imports(tree) if name.split(".")[0] in ("pytest", "hypothesis")]
    assert found == []
