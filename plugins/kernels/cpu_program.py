"""Recorded steps: the jobs of a decoder's layers run again without Python between them.

A decode step of 30 layers is some 300 calls of ops, each a few microseconds of Python and
of work: at small batches Python takes longer than the products. So the first step of each
number of rows is recorded while it runs: which tasks, with which arguments, into which
memory. The next one with as many rows is one call that runs those jobs in order. What the
step decides (tables, contexts, slots, the number of pieces) stays in blocks that the
attention fills before; a recorded job fetches those words anew (``Block.live``).

Recording is safe or it does not happen. While it runs, every torch operation is watched:
views are harmless, anything else would be missing from the program. A body that computes
outside this plugin's ops is never replayed.
"""

import math
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from .cpu_block import Block
from .cpu_jit import Task
from .cpu_pool import COMMAND, Pool

MOST_ROWS: Final = 64
"""Steps with more rows are not recorded: their products take far longer than Python."""
VIEWS: Final = ("view", "split", "unflatten", "transpose", "unbind", "expand")
QUESTIONS: Final = ("__get__", "data_ptr", "stride", "size", "dim", "numel", "is_contiguous")
"""``__get__`` reads a property, such as ``shape``."""
HARMLESS: Final = frozenset((*VIEWS, *QUESTIONS, "from_numpy"))
"""``from_numpy``: the arena's memory as a tensor."""


class Watch(TorchFunctionMode):
    """Notes torch operations that compute or allocate."""

    def __init__(self) -> None:
        super().__init__()
        self.met: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        if name not in HARMLESS:
            self.met.append(name)
        return func(*args, **(kwargs or {}))


class Arena:
    """Memory for the intermediate results of all programs.

    A piece is handed out again once no tensor uses it. Pieces are as large as ``MOST_ROWS``
    rows need, so that programs for other numbers of rows, which never run at the same
    time, share them.
    """

    def __init__(self) -> None:
        self.pieces: list[np.ndarray[Any, np.dtype[np.uint8]]] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor [rows, ...] in a piece that nobody uses."""
        size = math.prod(shape) * dtype.itemsize
        piece = self.take(size // max(shape[0], 1) * max(MOST_ROWS, shape[0]))
        return torch.from_numpy(piece[:size]).view(dtype).view(shape)

    def take(self, room: int) -> "np.ndarray[Any, np.dtype[np.uint8]]":
        """A piece of ``room`` bytes that nobody uses; hold it to keep it."""
        for index in range(len(self.pieces)):
            piece = self.pieces[index]
            # held by the list, by ``piece`` and by the argument of getrefcount
            if len(piece) == room and sys.getrefcount(piece) == 3:
                return piece
        self.pieces.append(np.zeros(room, dtype=np.uint8))
        return self.pieces[-1]


class Recording:
    """The jobs of one run of a body; see ``cpu_block.Recorder``."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.commands: list[tuple[int, ...]] = []
        self.blocks: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        self.refused = ""

    def job(self, task: Task, block: Block | int, items: int, work: int) -> int:
        """Note a job, with a copy of its arguments."""
        if isinstance(block, int):
            self.refused = "an op hands out the address of its arguments alone"
            return block
        words = block.words.copy()
        self.blocks.append(words)
        address = int(words.ctypes.data)
        self.commands.append(
            (task.address, address, items, block.address, *block.live, block.count, work)
        )
        return address

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory for an op's output."""
        return self.arena.empty(shape, dtype)


class Recorded:
    """A body that is recorded for each number of rows, and replayed.

    :param body: (hidden [T, H], cos_sin [T, D], attention) -> None; changes ``hidden`` in
        place, by table ops and views alone, in shapes that follow from those of its inputs
    """

    def __init__(self, body: Callable[..., None], pool: Pool) -> None:
        self.body = body
        self.pool = pool
        self.arena = Arena()
        self.inputs: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
        """Pieces that ``hidden`` and ``cos_sin`` are copied to."""
        self.programs: dict[tuple[int, int], np.ndarray[Any, np.dtype[np.int64]]] = {}
        self._attentions: dict[int, Any] = {}
        """Held, so that their ids stay theirs."""
        self.refused = ""
        """Why nothing is recorded; empty: it is."""
        self._blocks: list[np.ndarray[Any, np.dtype[np.int64]]] = []

    def __call__(self, hidden: torch.Tensor, cos_sin: torch.Tensor, attention: Any) -> None:
        """Run the body, in one way or the other."""
        rows = hidden.shape[0]
        if rows > MOST_ROWS or self.refused or hidden.dtype is not torch.float32:
            self.body(hidden, cos_sin, attention)
            return
        if not self.inputs:
            room = MOST_ROWS * 4
            self.inputs = [self.arena.take(room * each.shape[1]) for each in (hidden, cos_sin)]
        own, angles = (
            torch.from_numpy(piece).view(torch.float32).view(MOST_ROWS, -1)[:rows].copy_(given)
            for piece, given in zip(self.inputs, (hidden, cos_sin), strict=True)
        )
        program = self.programs.get((rows, id(attention)))
        if program is None:
            self._record(own, angles, attention)
        else:
            self.pool.replay(program)
        hidden.copy_(own)

    def buffers(self) -> tuple[np.ndarray[Any, Any], ...]:
        """What it keeps between steps."""
        return (*self.arena.pieces, *self.programs.values(), *self._blocks)

    def _record(self, hidden: torch.Tensor, cos_sin: torch.Tensor, attention: Any) -> None:
        recording, watch = Recording(self.arena), Watch()
        self.pool.recorder = recording
        try:
            with watch:
                self.body(hidden, cos_sin, attention)
        finally:
            self.pool.recorder = None
        if watch.met:
            recording.refused = f"torch computes {watch.met[0]!r} between its ops"
        if recording.refused:
            self.refused = recording.refused
            return
        self._blocks += recording.blocks
        commands = np.array(recording.commands, dtype=np.int64).reshape(-1, COMMAND)
        self._attentions[id(attention)] = attention
        self.programs[hidden.shape[0], id(attention)] = commands
