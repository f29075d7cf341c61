"""The list of cases is complete, and every status in it is true."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
NUMBERS = (
    *(1, 4, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 20, 21, 26, 28, 29, 31, 32, 33, 35),
    *(37, 38, 40, 42, 43, 44, 45, 46, 47, 48, 49, 50, 52, 56, 59, 60, 62, 63, 64, 66, 68, 69),
    *(71, 72, 73, 74),
)
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", (TESTS / "CASES.md").read_text(), flags=re.M)


def parses_tool_calls():
    """Whether a frontend's parser makes tool calls."""
    return any("ToolCallDelta(" in path.read_text() for path in (ROOT / "plugins").rglob("*.py"))


BUILT = {
    "a drafter": "enginebay.drafters" in GROUPS,
    "a grammar": "enginebay.grammars" in GROUPS,
    "a quantization scheme": len(GROUPS["enginebay.quant"]) > 1,
    "a tool-call parser": parses_tool_calls(),
}
"""Parts that cases may wait for, and whether they are there."""


def names(path):
    """Functions of a test file."""
    tree = ast.parse((TESTS / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_case_is_listed_once():
    """None is lost, and none is told twice."""
    assert [int(number) for number, _, _ in ROWS] == list(NUMBERS)


@pytest.mark.parametrize(("number", "right", "status"), ROWS, ids=[row[0] for row in ROWS])
def test_the_status_of_a_case_is_true(number, right, status):
    """Tests that are named exist; what is waited for is not built."""
    kind, _, rest = status.partition(": ")
    if kind == "tested":
        for test in rest.split(", "):
            path, _, name = test.partition("::")
            assert (TESTS / path).exists(), f"case {number} names {path}"
            assert name in names(path), f"case {number} names {test}"
    else:
        assert kind == "waits for"
        assert rest in BUILT, f"case {number} waits for {rest!r}, which is no known part"
        assert not BUILT[rest], f"case {number} waits for {rest}, which is built: test it"
