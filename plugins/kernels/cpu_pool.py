"""A pool of threads that never hold Python's lock, sleep soon, and help if they can.

A job is a number of independent items. The caller publishes it, wakes the helpers and
takes items itself; everyone claims the next item from one counter. A helper that the
system does not run in time costs nothing: the caller has done its share by then, whereas
a barrier waits for the slowest thread. Which thread ran an item never shows in its bits.

A step is hundreds of jobs, many of them shorter than it takes to wake a thread. So a
helper that has nothing to do looks for the next job for about 0.1 ms before it sleeps: it
stays awake through a step, and between steps it leaves its core to others.

Measured, with helpers that sleep at once, against numba's own layers with a job of 0.4 ms
on two cores. Quiet: 0.21 ms, and ``omp`` 0.23. Beside one busy process: 0.4 ms, ``omp``
0.45 when its threads sleep and 12 when they spin, ``workqueue`` 0.5. ``workqueue`` also
lets the caller sleep, splits evenly in advance, and ends the process when two threads use
it at once, as two engines would; ``omp`` brings a second OpenMP runtime beside torch's.
Python threads would need Python's lock to begin: up to 5 ms beside a busy event loop.

State, in 64-bit words (each group on a cache line of its own):

====  ============================================================================
0     ticket: generation << 32 | items not yet claimed
8     items done
16    task address; 17 argument block; 18 items of the job; 19 not 0: helpers end
24    semaphore ``work``; 32 semaphore ``finished``; 40 helpers asleep, or about to be
====  ============================================================================

A helper reads the job between reading the ticket and claiming from it; the claim fails
when the ticket has changed, and the job can't change while an item is unclaimed.
A helper counts itself asleep and looks at the ticket once more before it waits; the caller
publishes before it counts sleepers, so one of the two sees the other. A post too many
wakes a helper for nothing, once. Waiting is POSIX ``sem_wait`` (a futex on Linux).
"""

import ctypes
import threading
import weakref
from typing import Any

import numpy as np
import torch

from .cpu_atomics import add, read, rest, run_item, sem_post, sem_wait, swap, write
from .cpu_block import Block, Recorder
from .cpu_jit import Entry, Task, inlined
from .cpu_memory import longs

TICKET, DONE, TASK, ARGUMENTS, ITEMS, ENDING, WORK, FINISHED = 0, 8, 16, 17, 18, 19, 24, 32
ASLEEP = 40
WORDS = 48
LOW = 0xFFFFFFFF
TINY = 15_000
"""Nanoseconds of work that are not worth another thread."""
COMMAND = 8
"""Words of a recorded job: task, argument block, items; the op's own block, first and end
of its live words, the word of its count (work follows) or -1; nanoseconds of work."""
LOOKS = 4000
"""Times that a thread looks before it sleeps, 20 to 40 ns each."""


@inlined
def drain(state: int, slot: int) -> None:
    """Run items of the published job until none is left to claim."""
    words = longs(state)
    while True:
        ticket = read(state + 8 * TICKET)
        left = ticket & LOW
        if left == 0:
            return
        task, arguments, items = words[TASK], words[ARGUMENTS], words[ITEMS]
        if swap(state + 8 * TICKET, ticket, ticket - 1):
            run_item(task, arguments, items - left, slot)
            if add(state + 8 * DONE, 1) + 1 == items:
                sem_post(state + 8 * FINISHED)


def _help(state: int, slot: int) -> None:
    """A helper's life."""
    words = longs(state)
    looks = LOOKS
    while True:
        if read(state + 8 * TICKET) & LOW != 0:
            drain(state, slot)
            looks = LOOKS
        elif looks > 0:
            rest()
            looks -= 1
        else:
            add(state + 8 * ASLEEP, 1)
            if read(state + 8 * TICKET) & LOW == 0:
                while sem_wait(state + 8 * WORK) != 0:
                    pass
            add(state + 8 * ASLEEP, -1)
            if words[ENDING] != 0:
                return
            looks = LOOKS


@inlined
def share_out(state: int, task: int, arguments: int, items: int, helpers: int) -> None:
    """Publish a job, work on it, and return when every item is done."""
    words = longs(state)
    words[TASK], words[ARGUMENTS], words[ITEMS] = task, arguments, items
    write(state + 8 * DONE, 0)
    generation = (read(state + 8 * TICKET) >> 32) + 1
    write(state + 8 * TICKET, (generation << 32) | items)
    for _ in range(min(read(state + 8 * ASLEEP), helpers, items - 1)):
        sem_post(state + 8 * WORK)
    drain(state, 0)
    looks = LOOKS
    while looks > 0 and read(state + 8 * DONE) < items:
        rest()
        looks -= 1
    while sem_wait(state + 8 * FINISHED) != 0:
        pass


def _together(state: int, task: int, arguments: int, items: int, helpers: int) -> None:
    share_out(state, task, arguments, items, helpers)


def _briefly(state: int, task: int, arguments: int, items: int, helpers: int) -> None:
    share_out(state, task, arguments, items, helpers)


def _alone(task: int, arguments: int, items: int) -> None:
    for item in range(items):
        run_item(task, arguments, item, 0)


def _quick(task: int, arguments: int, items: int) -> None:
    for item in range(items):
        run_item(task, arguments, item, 0)


def _replay(state: int, commands: int, number: int, helpers: int) -> None:
    """Run recorded jobs. Of each: its live words and its count are fetched first."""
    for index in range(number):
        command = longs(commands + 8 * COMMAND * index)
        arguments = longs(command[1])
        source = longs(command[3])
        for word in range(command[4], command[5]):
            arguments[word] = source[word]
        items, work = command[2], command[7]
        if command[6] >= 0:
            items, work = source[command[6]], source[command[6] + 1]
        if helpers == 0 or items < 2 or work < TINY:
            for item in range(items):
                run_item(command[0], command[1], item, 0)
        else:
            share_out(state, command[0], command[1], items, helpers)


# numba's cache tells functions apart, not their nogil: one for each.
HELP = Entry(_help, nogil=True)
REPLAY = Entry(_replay, nogil=True)
TOGETHER = Entry(_together, nogil=True)
BRIEFLY = Entry(_briefly, nogil=False)
ALONE = Entry(_alone, nogil=True)
QUICK = Entry(_quick, nogil=False)

SHORT = 100_000
"""Nanoseconds of work for which giving up Python's lock does not pay: beside a busy thread
it comes back after up to 5 ms."""


class Pool:
    """Threads for the tasks of one engine. Jobs come from one thread at a time."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._words = np.zeros(WORDS + 8, dtype=np.int64)
        self._state = -(-self._words.ctypes.data // 64) * 64
        self._started = False
        self._lock = threading.Lock()
        self.recorder: Recorder | None = None

    def run(self, task: Task, block: "Block | int", items: int, work: int) -> None:
        """Run every item of a job and return when all are done.

        :param block: the argument block, or the address of one, which can't be recorded
        :param work: a rough estimate in nanoseconds on one thread
        """
        if self.recorder is not None:
            arguments = self.recorder.job(task, block, items, work)
        else:
            arguments = block if isinstance(block, int) else block.address
        if self.threads == 1 or items <= 1 or work < TINY:
            alone = QUICK if work < SHORT else ALONE
            alone.call(task.address, arguments, items)
        else:
            together = BRIEFLY if work < SHORT else TOGETHER
            with self._lock:
                self._start()
                together.call(self._state, task.address, arguments, items, self.threads - 1)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A new tensor for an op's output."""
        if self.recorder is not None:
            return self.recorder.empty(shape, dtype)
        return torch.empty(shape, dtype=dtype)

    def replay(self, commands: "np.ndarray[Any, np.dtype[np.int64]]") -> None:
        """Run the jobs of a program, rows of ``cpu_program.COMMAND``, one after the other."""
        with self._lock:
            if self.threads > 1:
                self._start()
            REPLAY.call(self._state, commands.ctypes.data, len(commands), self.threads - 1)

    def warm_up(self) -> None:
        """Compile what ``run`` may need and start the helpers."""
        for entry in (QUICK, ALONE, REPLAY):
            entry.compile()
        if self.threads > 1:
            for entry in (HELP, TOGETHER, BRIEFLY):
                entry.compile()
            with self._lock:
                self._start()

    def _start(self) -> None:
        if self._started:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        for semaphore in (WORK, FINISHED):
            if libc.sem_init(ctypes.c_void_p(self._state + 8 * semaphore), 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "sem_init failed; set threads = 1")
        for slot in range(1, self.threads):
            threading.Thread(
                target=_live,
                args=(self._words, self._state, slot),
                name=f"enginebay-cpu-{slot}",
                daemon=True,
            ).start()
        ending = weakref.finalize(self, _end, libc, self._words, self._state, self.threads - 1)
        ending.atexit = False  # a process that exits leaves its sleepers asleep
        self._started = True


def _live(words: "np.ndarray[Any, Any]", state: int, slot: int) -> None:
    """Run a helper; ``words`` is held so that the memory outlives the thread."""
    HELP.call(state, slot)
    del words


def _end(libc: ctypes.CDLL, words: "np.ndarray[Any, Any]", state: int, helpers: int) -> None:
    """Let the helpers of a forgotten pool go."""
    words[(state - words.ctypes.data) // 8 + ENDING] = 1
    for _ in range(helpers):
        libc.sem_post(ctypes.c_void_p(state + 8 * WORK))
