"""Compiles Triton kernels for a GPU that is not there, and reads the machine code.

Inside ``offline(target)`` a launch compiles exactly the specialisation that it would run
(constants, alignment, warps) and computes nothing. The tools are those of Triton's wheel.
"""

import re
import subprocess
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from triton.runtime import driver
from triton.runtime.jit import JITFunction

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class OfflineDriver:
    """As much of a driver as compiling asks for."""

    def __init__(self, target):
        self.target = target

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=0):
        return 0

    def set_current_device(self, device):
        """There is one."""

    def is_active(self):
        return True

    def get_active_torch_device(self):
        return torch.device("cpu")


@contextmanager
def offline(target):
    """Yields a list that every launch adds (name, compiled kernel) to."""
    compiled, run = [], JITFunction.run

    def compile_only(self, *arguments, grid, warmup=True, **constants):
        self.device_caches.clear()  # they are kept by device number, whatever the target
        kernel = run(self, *arguments, grid=grid, warmup=True, **constants)
        compiled.append((self.__name__, kernel))
        return kernel

    JITFunction.run = compile_only
    driver.set_active(OfflineDriver(target))
    try:
        yield compiled
    finally:
        JITFunction.run = run
        driver._active = None


@dataclass(frozen=True)
class MachineCode:
    """What the assembler made of a kernel."""

    registers: int
    stack: int
    """Bytes a thread; above 0, registers were spilled."""
    shared: int
    """Bytes a block."""
    instructions: Counter

    def count(self, pattern):
        """Instructions whose name matches from its beginning."""
        return sum(n for name, n in self.instructions.items() if re.match(pattern, name))


def machine_code(kernel):
    """Disassembles a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = _run("cuobjdump", "--dump-resource-usage", file.name)
        listing = _run("nvdisasm", file.name)
    used = {name: int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", usage)}
    line = r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?([A-Z][A-Z0-9_.]+)"
    names = Counter(re.findall(line, listing, flags=re.M))
    return MachineCode(used["REG"], used["STACK"], kernel.metadata.shared, names)


def _run(tool, *arguments):
    done = subprocess.run([TOOLS / tool, *arguments], capture_output=True, text=True, check=True)
    return done.stdout
