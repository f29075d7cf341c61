"""The log: it must never end what it tells of."""

import io
import sys

import pytest
import structlog

from enginebay.commands.terminal import quiet_logs


class Broken(io.StringIO):
    """A pipe whose reader is gone."""

    def write(self, text):
        raise BrokenPipeError(text)


@pytest.mark.parametrize("kind", ["closed", "broken"])
def test_a_log_that_can_not_be_written_raises_nothing(monkeypatch, kind):
    """Standard error was closed after the log was set up."""
    quiet_logs("info")
    stream = Broken() if kind == "broken" else io.StringIO()
    if kind == "closed":
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    structlog.get_logger("enginebay").warning("nobody reads this")


def test_the_log_goes_to_standard_error_as_it_is_now(monkeypatch):
    """Not to the one of the moment when it was set up."""
    quiet_logs("info")
    now = io.StringIO()
    monkeypatch.setattr(sys, "stderr", now)
    structlog.get_logger("enginebay").info("hello")
    assert "hello" in now.getvalue()
