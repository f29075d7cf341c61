"""A client whose engine comes later."""

import pytest

from enginebay.conformance.scripted_client import ScriptedClient
from enginebay.errors import EngineStopped
from enginebay.flow import Request, TextPrompt
from enginebay.starting import Starting

REQUEST = Request(id="r", prompt=TextPrompt(text="x"))


@pytest.fixture
def engine():
    """What it becomes."""
    client = ScriptedClient()
    yield client
    client.close()


def test_nothing_is_taken_before_the_engine_is_there(engine):
    """Alive, not ready, empty; what is cancelled or acknowledged is nobody's."""
    client = Starting()
    health = client.health()
    assert (health.state, health.alive, health.ready) == ("starting", True, False)
    with pytest.raises(EngineStopped, match="being loaded"):
        client.submit(REQUEST)
    client.cancel("r")
    client.acknowledge(())
    assert client.snapshot("r").timeline == ()
    assert engine.submitted == engine.cancelled == engine.acknowledged == []


def test_then_it_is_the_engine(engine):
    """A listener that came before hears the events of requests that come after."""
    client, heard = Starting(), []
    client.events(lambda batch: heard.extend(batch.events))
    client.ready(engine)
    assert client.health().ready
    assert client.submit(REQUEST).request_id == "r"
    assert engine.idle()
    assert heard
    client.cancel("r")
    client.acknowledge(())
    assert client.snapshot().num_blocks == 8
    assert engine.cancelled == [("r", "cancelled")]
    later = []
    client.events(lambda batch: later.extend(batch.events))
    client.submit(REQUEST)
    assert engine.idle()
    assert later


@pytest.mark.parametrize("first", ["drain", "ready"])
def test_drained_whenever_it_comes(engine, first):
    """An engine that comes to a client that was drained takes no request either."""
    client = Starting()
    if first == "drain":
        assert client.drain(1.0)
        assert client.health().state == "closed"
        client.ready(engine)
    else:
        client.ready(engine)
        assert client.drain(1.0)
    assert engine.state == client.health().state == "closed"
