"""What the CPU kernels' code relies on, read in the code itself."""

import importlib
import pkgutil
import re

import numba
import pytest

from enginebay.plugins import kernels
from enginebay.plugins.kernels.cpu_jit import TASK_SIGNATURE, Entry, Task

MODULES = [
    importlib.import_module(f"{kernels.__name__}.{found.name}")
    for found in pkgutil.iter_modules(kernels.__path__)
    if found.name.startswith("cpu")
]
TASKS = {
    value.function.__qualname__: value
    for module in MODULES
    for value in vars(module).values()
    if isinstance(value, Task)
}
ENTRIES = {
    id(value): value
    for module in MODULES
    for value in vars(module).values()
    if isinstance(value, Entry)
}.values()
ON_STACK = re.compile(r"\s*(%\S+) = alloca .*, align (\d+)")
ACCESS = re.compile(r"(?:load|store) .*, ptr (%[^,\s]+), align (\d+)")


def overstated(code):
    """Accesses to memory on the stack that claim more alignment than was asked for it.

    :param code: LLVM's text of a module
    """
    found, asked = [], {}
    for line in code.splitlines():
        if line.startswith("define"):
            asked = {}
        elif place := ON_STACK.match(line):
            asked[place[1]] = int(place[2])
        elif (access := ACCESS.search(line)) and int(access[2]) > asked.get(access[1], 4096):
            found.append(line.strip())
    return found


def test_an_overstated_alignment_is_seen():
    """By function: names of places are a function's own."""
    code = """
define void @a() {
  %.1 = alloca [16 x float], align 4
  store <16 x float> zeroinitializer, ptr %.1, align 64, !noalias !4
  %.2 = load <16 x float>, ptr %.1, align 4
}
define void @b() {
  %.1 = alloca <16 x float>, align 64
  %.2 = load <16 x float>, ptr %.1, align 64
}
"""
    assert overstated(code) == [
        "store <16 x float> zeroinitializer, ptr %.1, align 64, !noalias !4"
    ]


@pytest.mark.parametrize("name", TASKS)
def test_the_stack_is_aligned_as_the_code_expects(name):
    """Otherwise a task ends the process at every second depth of the stack."""
    code = numba.cfunc(TASK_SIGNATURE, error_model="numpy")(TASKS[name].function)
    text = code.inspect_llvm()
    assert "alloca" in text  # optimized, and written as the pattern reads it
    assert not overstated(text)


def test_every_entry_is_a_function_of_its_own():
    """numba's cache would give one's machine code, with its nogil, to the other."""
    functions = [entry.function for entry in ENTRIES]
    assert len(set(functions)) == len(functions) > 5
