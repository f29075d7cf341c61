"""Files that finished requests' timelines are written to: lines of JSON, or a trace."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from enginebay.errors import StackError
from enginebay.hookspecs.observer import RequestRecord
from enginebay.timeline import Timeline, latencies
from enginebay.trace import counter, named, thread_events
from enginebay.trace_rows import rows_of

Count = tuple[float, int, int]
"""Time, and how many sequences ran and waited from then on."""

_TAIL: Final = b"\n]\n"
_CHUNK: Final = 1 << 16


class TimelineFile(Protocol):
    """Written to by one thread."""

    def write(self, record: RequestRecord, counts: Iterable[Count]) -> None:
        """Add a finished request, and what was counted since the last one."""

    def close(self, counts: Iterable[Count]) -> None: ...


class LineFile:
    """One line of JSON a request, appended."""

    def __init__(self, path: Path, timeline: Timeline) -> None:
        self._file = path.open("ab", buffering=0)
        self._timeline = timeline

    def write(self, record: RequestRecord, counts: Iterable[Count]) -> None:
        """Counts are not told."""
        events = self._timeline.of(record.request_id)
        fields = {
            "request_id": record.request_id,
            "tenant": record.tenant,
            "usage": record.usage,
            "reasons": record.reasons,
            "error": record.error,
            "latencies": latencies(events),
            "events": events,
        }
        self._file.write(msgspec.json.encode(fields) + b"\n")

    def close(self, counts: Iterable[Count]) -> None:
        self._file.close()


class TraceFile:
    """A trace as one JSON array, an event a line, complete after every write.

    Each write begins over the closing bracket and ends with a new one. Where a crash tore
    the last write, the next start takes the file up to its last whole line.
    """

    def __init__(self, path: Path, timeline: Timeline, name: str) -> None:
        """:raises StackError: the file holds something else"""
        self._timeline = timeline
        self._process = os.getpid()
        self._thread = 0
        path.touch()
        self._file = path.open("r+b")
        if self._file.read(1) not in (b"", b"["):
            self._file.close()
            msg = f"timeline: path {str(path)!r} holds no trace; give another, or format 'jsonl'"
            raise StackError(msg)
        self._end = self._whole_lines()
        self._add([named("process_name", name, process=self._process)])

    def write(self, record: RequestRecord, counts: Iterable[Count]) -> None:
        events = [counter(*count, process=self._process) for count in counts]
        for row in rows_of(record.request_id, self._timeline.of(record.request_id)):
            self._thread += 1
            events += thread_events(row, self._thread, self._process)
        self._add(events)

    def close(self, counts: Iterable[Count]) -> None:
        with self._file:
            self._add([counter(*count, process=self._process) for count in counts])

    def _add(self, events: list[dict[str, object]]) -> None:
        if not events:
            return
        lines = b",\n".join(msgspec.json.encode(event) for event in events)
        lines = (b",\n" if self._end > 1 else b"[\n") + lines
        self._file.seek(max(self._end, 0))
        self._file.write(lines + _TAIL)
        self._file.flush()
        self._end = self._file.tell() - len(_TAIL)

    def _whole_lines(self) -> int:
        """Where the last whole event ends; 0 for a file without one. Cuts what follows."""
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(size - len(_TAIL), 0))
        end = size - len(_TAIL) if self._file.read() == _TAIL else self._last_newline(size)
        self._file.seek(max(end - 1, 0))
        if self._file.read(1) == b",":
            end -= 1
        end = end if end > 1 else 0
        self._file.truncate(end)
        return end

    def _last_newline(self, size: int) -> int:
        """Where the last line break before ``size`` is; 0: there is none."""
        while size > 0:
            begin = max(size - _CHUNK, 0)
            self._file.seek(begin)
            place = self._file.read(size - begin).rfind(b"\n")
            if place >= 0:
                return begin + place
            size = begin
        return 0
