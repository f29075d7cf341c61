"""A tiny model and engines over it, for whole runs."""

import pytest

from enginebay import LLM
from enginebay.conformance.tiny import write_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A random Llama of two layers and 300 tokens."""
    return str(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny-llama"))


@pytest.fixture
def start(tiny):
    """Start an engine over the tiny model; closed when the test ends."""
    started = []

    def starter(stack="reference", model=tiny, **overrides):
        changes = {"engine.num_blocks": 256}
        changes |= {key.replace("__", "."): value for key, value in overrides.items()}
        started.append(LLM(model, stack=stack, overrides=changes))
        return started[-1]

    yield starter
    for llm in started:
        llm.close()
        assert_idle(llm)


def assert_idle(llm):
    """Everything came back: blocks, seats, waiting places, and the books agree."""
    engine = llm.assembly.engine
    snapshot = llm.client.snapshot()
    assert (snapshot.num_used_blocks, snapshot.num_running, snapshot.num_waiting) == (0, 0, 0)
    assert not engine.busy
    engine.allocator.check_integrity()
    engine.scheduler.check_integrity()
