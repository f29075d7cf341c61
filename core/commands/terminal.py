"""What the terminal shows: progress, warnings, streamed text."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO, cast

import structlog
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ..flow import Delta, Ended, Event, Usage
from ..hookspecs.source import Progress as Report


def quiet_logs(level: str = "warning") -> None:
    """Send log lines of ``level`` and above to standard error."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
            if sys.stderr.isatty()
            else structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", StandardError())),
    )


class StandardError:
    """Standard error as it is at each line. A line that can't be written, to a pipe that
    was closed for instance, is lost: a log must never end what it tells of."""

    def write(self, text: str) -> None:
        """Write what can be written."""
        with suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with suppress(OSError, ValueError):
            sys.stderr.flush()


@contextmanager
def progress_bar() -> Iterator[Report]:
    """A progress display on standard error, shown once there is something to tell."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    tasks: dict[str, int] = {}

    def report(what: str, done: int, total: int | None) -> None:
        if what not in tasks:
            bar.start()
            tasks[what] = bar.add_task(what, total=total)
        bar.update(tasks[what], completed=done, total=total)  # type: ignore[arg-type]

    try:
        yield report
    finally:
        bar.stop()


def show(events: Iterator[Event]) -> tuple[str, Usage | None, str | None]:
    """Print content as it comes. :return: the text, the usage, the error if any"""
    text: list[str] = []
    usage, error = None, None
    for event in events:
        if isinstance(event, Delta) and event.content:
            text.append(event.content)
            sys.stdout.write(event.content)
            sys.stdout.flush()
        elif isinstance(event, Ended):
            usage, error = event.usage, event.error.message if event.error else None
    sys.stdout.write("\n")
    return "".join(text), usage, error
