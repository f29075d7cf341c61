"""The process of one engine, as the driver sees it: asked, answered, stopped in between."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .engines import Setup
from .machine import group_seconds

ROOT = Path(__file__).parents[2]
CLEARED = ("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "NUMBA_")
"""Settings of thread pools and kernels that a caller's environment must not bring in."""
LONGEST_REASON = 300


class Failed(Exception):
    """An engine could not be loaded, or could not run a point; says why."""


class Worker:
    """One engine's process. It runs only while it is asked."""

    def __init__(self, python: str, setup: Setup, log: Path, patience: float) -> None:
        """Start and load.

        :param patience: seconds after which a silent engine is given up
        :raises Failed: the engine is not installed there, or can't load the model
        """
        self._log, self._patience = log, patience
        with log.open("wb") as stream:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.peers.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                cwd=ROOT,
                env=environment(setup.threads),
                text=True,
                start_new_session=True,
            )
        try:
            self.facts: dict[str, Any] = self._exchange(setup.as_dict())["facts"]
        except Failed:
            self.close()
            raise
        self._stop()

    @property
    def pid(self) -> int:
        """Of the process, and of the group with all that it starts."""
        return self._process.pid

    def cpu_seconds(self) -> float:
        """Processor seconds that the process and its children have used."""
        return group_seconds(self.pid)

    def run(self, prompts: list[list[int]], tokens: int, *, mark: bool) -> dict[str, Any]:
        """One run; the answer is that of ``worker.run``.

        :raises Failed: the engine failed, or gave other than ``tokens`` tokens
        """
        answer = self._exchange({"prompts": prompts, "tokens": tokens, "mark": mark})
        lengths = {len(row) for row in answer["outputs"]}
        if lengths != {tokens} or len(answer["outputs"]) != len(prompts):
            raise Failed(f"{tokens} tokens asked for, {sorted(lengths)} came")
        return answer

    @contextmanager
    def awake(self) -> Iterator["Worker"]:
        """While it lasts the process runs."""
        self._signal(signal.SIGCONT)
        try:
            yield self
        finally:
            self._stop()

    def close(self) -> None:
        """End the process and all that it started."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # a line that nobody read is no loss
                if stream is not None:
                    stream.close()

    def _exchange(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        giving_up = threading.Timer(self._patience, self._signal, (signal.SIGKILL,))
        giving_up.start()
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        finally:
            giving_up.cancel()
        if not line:
            raise Failed(f"the process ended, or said nothing in {self._patience:g} s; {self._log}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"].split("\n")[0][:LONGEST_REASON])
        return answer

    def _stop(self) -> None:
        """Stop every thread; returns when they stand, or when the process is gone."""
        self._signal(signal.SIGSTOP)
        if self._process.returncode is None:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self.pid, number)


def environment(threads: int) -> dict[str, str]:
    """The caller's environment, with this many threads and nothing asked of the network."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(CLEARED)}
    return {
        **kept,
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
