"""Whose code an error came from."""

import pytest

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of
from enginebay.culprit import culprit, told
from enginebay.errors import StackError
from enginebay.keyfile import new_key
from enginebay.plugins.schedulers.chunked import Chunked, Options


class Broken(Chunked):
    """Fails by itself, or in what it calls."""

    def add(self, sequence):
        return 1 / 0


class Naming(Chunked):
    """Names a sequence that is not there."""

    def plan(self, build):
        build.start(Naming)

    id = 7


@pytest.mark.parametrize(
    ("policy", "words"), [(Broken, "ZeroDivisionError: "), (Naming, "named sequence 7")]
)
def test_the_plugin_that_failed_is_named(policy, words):
    """Also where the core found the error in what it was told."""
    harness = Harness(lambda given: policy(Options(), given), limits_of())
    harness.submit(request_of("r", num_prompt=4, max_tokens=3))
    with pytest.raises((ZeroDivisionError, LookupError)) as failed:
        harness.engine.step()
    assert culprit(failed.value) == __name__
    assert words in told(failed.value)
    assert told(failed.value).endswith(f" (in {__name__})")


def test_the_cores_own_errors_name_nobody():
    """Neither who called the core."""
    with pytest.raises(StackError) as failed:
        new_key("")
    assert culprit(failed.value) is None
    assert told(failed.value).startswith("StackError: tenant ''")
