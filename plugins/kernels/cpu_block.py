"""What the jobs of a pool work with: argument blocks, scratch memory, and who records them."""

from typing import Any, Protocol

import numpy as np
import torch

from .cpu_jit import Task


class Block:
    """The argument block of an op: 64-bit words at a fixed address.

    :param live: first and end of the words that are not the call's own but the step's; a
        recorded call reads them anew each time
    :param count: the word that holds the number of items, the next one the work, when they
        are the step's too
    :param words: memory to use, of another op's block
    """

    def __init__(
        self,
        num_words: int,
        live: tuple[int, int] = (0, 0),
        count: int = -1,
        words: "np.ndarray[Any, np.dtype[np.int64]] | None" = None,
    ) -> None:
        self.words = np.zeros(num_words, dtype=np.int64) if words is None else words
        self.data = self.words.data
        self.address: int = self.words.ctypes.data
        self.live = live
        self.count = count


class Scratch:
    """Memory for each thread of a pool. What was handed out before it grew stays valid:
    recorded jobs may have its address."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.step = 0
        """Bytes of one thread, a multiple of 64."""
        self.address = 0
        self.pieces: list[np.ndarray[Any, np.dtype[np.uint8]]] = []

    def reserve(self, num_bytes: int) -> None:
        """Make each thread's part at least so large."""
        if num_bytes > self.step:
            self.step = -(-num_bytes // 64) * 64
            self.pieces.append(np.zeros(self.step * self.threads + 64, dtype=np.uint8))
            self.address = -(-self.pieces[-1].ctypes.data // 64) * 64


class Recorder(Protocol):
    """Who is told of every job while a program is recorded (``cpu_program``)."""

    def job(self, task: Task, block: "Block | int", items: int, work: int) -> int:
        """:return: the address of a copy of the block, for this job alone"""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory that stays where it is for as long as the program."""
