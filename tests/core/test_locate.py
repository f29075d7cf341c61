"""Sources and formats are asked in order; a failure tells what each one said."""

import pytest

from enginebay.errors import ModelError
from enginebay.hookspecs.source import Files
from enginebay.locate import locate, open_checkpoint

FOUND = Files(path="x", origin="x", revision="1")


class Answers:
    """A source, or a format, with a fixed answer; it counts how often it is asked."""

    def __init__(self, answer):
        self.answer, self.asked = answer, 0

    def resolve(self, reference):
        self.asked += 1
        return self.answer

    open = resolve


def test_first_source_that_has_it_wins():
    """Later sources are not asked."""
    later = Answers("never")
    files = locate([("a", Answers("not here")), ("b", Answers(FOUND)), ("c", later)], "m")
    assert files is FOUND
    assert later.asked == 0


def test_failure_names_every_source_and_its_reason():
    """One error holds the reference and each reason."""
    with pytest.raises(ModelError) as caught:
        locate([("path", Answers("no such folder")), ("hub", Answers("offline"))], "acme/tiny")
    message = str(caught.value)
    for part in ("'acme/tiny'", "path: no such folder", "hub: offline"):
        assert part in message


def test_failure_without_sources_says_what_to_add():
    """An empty list is a mistake in the stack, not in the model."""
    with pytest.raises(ModelError, match="lists no sources"):
        locate([], "m")


def test_formats_are_asked_likewise():
    """The checkpoint comes from the first format that takes the files."""
    checkpoint = object()
    assert open_checkpoint([("a", Answers("no")), ("b", Answers(checkpoint))], FOUND) is checkpoint
    with pytest.raises(ModelError, match="gguf: no magic"):
        open_checkpoint([("gguf", Answers("no magic"))], FOUND)
