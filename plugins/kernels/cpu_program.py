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
from .cpu_jit import Task, inlined
from .cpu_memory import floats, longs
from .cpu_pool import Pool

MOST_ROWS: Final = 64
"""Steps with more rows are not recorded: their products take far longer than Python."""
VIEWS: Final = ("view", "split", "unflatten", "transpose", "unbind", "expand")
QUESTIONS: Final = ("__get__", "data_ptr", "stride", "size", "dim", "numel", "is_contiguous")
"""``__get__`` reads a property, such as ``shape``."""
HARMLESS: Final = frozenset((*VIEWS, *QUESTIONS, "from_numpy"))
"""``from_numpy``: the arena's memory as a tensor."""
HIDDEN, ANGLES, OWN_HIDDEN, OWN_ANGLES, HIDDEN_SIZE, ANGLES_SIZE = range(6)
"""Words of the jobs around a program. The first two are the step's: where the caller's
rows are; the program's jobs know its own memory. Sizes are in float32."""


@inlined
def copy(source: int, target: int, size: int) -> None:
    """float32 [size]."""
    read, written = floats(source), floats(target)
    for index in range(size):
        written[index] = read[index]


def _enter(arguments: int, item: int, slot: int) -> None:
    """The caller's rows become the program's."""
    w = longs(arguments)
    copy(w[HIDDEN], w[OWN_HIDDEN], w[HIDDEN_SIZE])
    copy(w[ANGLES], w[OWN_ANGLES], w[ANGLES_SIZE])


def _leave(arguments: int, item: int, slot: int) -> None:
    """And back."""
    w = longs(arguments)
    copy(w[OWN_HIDDEN], w[HIDDEN], w[HIDDEN_SIZE])


ENTER = Task(_enter)
LEAVE = Task(_leave)


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
        self._given = Block(OWN_HIDDEN, (HIDDEN, OWN_HIDDEN))
        """Where the caller's rows are."""
        self._widths = (0, 0)
        """Columns of ``hidden`` and ``cos_sin``; all programs have the same."""

    def __call__(self, hidden: torch.Tensor, cos_sin: torch.Tensor, attention: Any) -> None:
        """Run the body, in one way or the other."""
        rows = hidden.shape[0]
        program = self.programs.get((rows, id(attention)))
        if program is not None and self._fit(hidden, cos_sin):
            self._given.data[HIDDEN] = hidden.data_ptr()
            self._given.data[ANGLES] = cos_sin.data_ptr()
            self.pool.replay(program)
        elif rows > MOST_ROWS or self.refused or not self._fit(hidden, cos_sin):
            self.body(hidden, cos_sin, attention)
        else:
            self._record(hidden, cos_sin, attention)

    def buffers(self) -> tuple[np.ndarray[Any, Any], ...]:
        """What it keeps between steps."""
        return (*self.arena.pieces, *self.programs.values(), *self._blocks)

    def _fit(self, hidden: torch.Tensor, cos_sin: torch.Tensor) -> bool:
        """Whether a program can take them as they lie in memory."""
        widths = hidden.shape[1], cos_sin.shape[1]
        return (
            hidden.dtype is cos_sin.dtype is torch.float32
            and hidden.is_contiguous()
            and cos_sin.is_contiguous()
            and self._widths in (widths, (0, 0))
        )

    def _record(self, hidden: torch.Tensor, cos_sin: torch.Tensor, attention: Any) -> None:
        """Run the body on the program's own memory, and keep what it did."""
        if not self.inputs:
            self._widths = hidden.shape[1], cos_sin.shape[1]
            self.inputs = [self.arena.take(MOST_ROWS * 4 * width) for width in self._widths]
        rows = hidden.shape[0]
        own, angles = (
            torch.from_numpy(piece).view(torch.float32).view(MOST_ROWS, -1)[:rows].copy_(given)
            for piece, given in zip(self.inputs, (hidden, cos_sin), strict=True)
        )
        recording = self._recorded(own, angles, attention)
        hidden.copy_(own)
        if recording.refused:
            self.refused = recording.refused
            return
        words = (own.data_ptr(), angles.data_ptr(), own.numel(), angles.numel())
        around = np.array((0, 0, *words), dtype=np.int64)
        ends = [
            (task.address, around.ctypes.data, 1, self._given.address, *self._given.live, -1, 0)
            for task in (ENTER, LEAVE)
        ]
        commands = [ends[0], *recording.commands, ends[1]]
        self._blocks += (around, *recording.blocks)
        self._attentions[id(attention)] = attention
        self.programs[rows, id(attention)] = np.array(commands, dtype=np.int64)

    def _recorded(self, hidden: torch.Tensor, cos_sin: torch.Tensor, attention: Any) -> Recording:
        recording, watch = Recording(self.arena), Watch()
        self.pool.recorder = recording
        try:
            with watch:
                self.body(hidden, cos_sin, attention)
        finally:
            self.pool.recorder = None
        if watch.met:
            recording.refused = f"torch computes {watch.met[0]!r} between its ops"
        return recording
