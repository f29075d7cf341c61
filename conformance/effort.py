"""What a scheduler does in a step, counted instead of timed.

Every attribute that it reads of a sequence is counted, and every line that it runs, so
a scan over the whole queue shows whatever the machine's speed.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from enginebay.hookspecs.scheduler import Scheduler, SequenceView, StepBuilder


class Effort:
    """Counts of one stretch of a run."""

    def __init__(self) -> None:
        self.reads = 0
        """Attributes read, comparisons and hashes of sequences included."""
        self.lines = 0
        """Lines of Python run inside the scheduler's own calls."""

    @property
    def total(self) -> int:
        """Both together."""
        return self.reads + self.lines

    def reset(self) -> None:
        """Begin a new stretch."""
        self.reads = self.lines = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count lines while the scheduler runs, in this thread."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Lines of this module are the meter's own."""
        return None if frame.f_code.co_filename == __file__ else self._line

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.lines += event == "line"
        return self._line


class CountedView:
    """A sequence as a policy sees it, with a meter."""

    __slots__ = ("_effort", "_sequence")

    def __init__(self, sequence: SequenceView, effort: Effort) -> None:
        self._sequence = sequence
        self._effort = effort

    def __getattr__(self, name: str) -> Any:
        self._effort.reads += 1
        return getattr(self._sequence, name)

    def __eq__(self, other: object) -> bool:
        self._effort.reads += 1
        return self is other

    def __hash__(self) -> int:
        self._effort.reads += 1
        return id(self)


class CountedScheduler:
    """A scheduler whose work is counted. ``build`` is handed on as it is: what runs is
    few, what waits is many."""

    def __init__(self, inner: Scheduler, effort: Effort) -> None:
        self._inner = inner
        self._effort = effort

    def add(self, sequence: SequenceView) -> None:
        """Queue a counted view."""
        view: Any = CountedView(sequence, self._effort)
        with self._effort.counting():
            self._inner.add(view)

    def plan(self, build: StepBuilder) -> None:
        """Plan, counted."""
        with self._effort.counting():
            self._inner.plan(build)

    def remove(self, sequence_id: int) -> None:
        """Remove, counted."""
        with self._effort.counting():
            self._inner.remove(sequence_id)

    def num_waiting(self) -> int:
        """As the scheduler says."""
        return self._inner.num_waiting()

    def check_integrity(self) -> None:
        """May look at everything: it is not part of a step."""
        self._inner.check_integrity()
