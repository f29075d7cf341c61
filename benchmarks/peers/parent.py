"""A process that ends when the one that started it does."""

import ctypes
import signal


def end_with_parent() -> None:
    """Ask the system to end this process when its parent ends, however that comes.

    A driver that was killed can't end its workers, and a stopped one reads no end of its
    input. Where there is no ``prctl`` nothing is asked.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
