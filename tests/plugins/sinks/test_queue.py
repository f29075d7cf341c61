"""Raw events through a bounded queue and to a function."""

import queue
import threading

import pytest

from enginebay.flow import Delta
from enginebay.hookspecs.sink import Part, Reply, SinkContext
from enginebay.plugins.sinks import callback
from enginebay.plugins.sinks import queue as queue_sink

REPLY = Reply(request_id="r1")


def open_queue(max_events=1024, reply=REPLY):
    """A queue sink."""
    options = queue_sink.Options(max_events=max_events)
    return queue_sink.enginebay_sink(options, SinkContext()).open(reply)


def test_offer_past_the_bound_takes_nothing(script):
    """False when full; the same event fits after one was read."""
    sink = open_queue(2)
    first, second, third = script.choice([b"a", b"b"])
    assert sink.offer(first)
    assert sink.offer(second)
    assert not sink.offer(third)
    assert sink.get() is first
    assert sink.offer(third)
    assert sink.drain() == [second, third]


def test_a_reader_in_another_thread_gets_everything_in_order(script):
    """Iterating ends after the terminal event."""
    sink = open_queue(4)
    events = [*script.choice([b"x"] * 50), script.ended()]
    got = []
    reader = threading.Thread(target=lambda: got.extend(sink))
    reader.start()
    for event in events:
        while not sink.offer(event):
            pass
    reader.join(10)
    assert got == events
    assert sink.closed


def test_several_requests_end_with_the_last(script):
    """A reply of two parts is closed by the second terminal event."""
    parts = (Part(request_id="r1"), Part(request_id="r2"))
    sink = open_queue(reply=Reply(request_id="r", parts=parts))
    sink.offer(script.ended())
    assert not sink.closed
    sink.offer(script.ended(request_id="r2"))
    assert sink.closed


def test_waiting_has_a_bound():
    """``get`` gives up after its timeout."""
    with pytest.raises(queue.Empty):
        open_queue().get(timeout=0.001)


def test_a_callback_gets_each_event(script):
    """In the caller's thread, at once."""
    got = []
    kind = callback.enginebay_sink(callback.Options(), SinkContext())
    sink = kind.open(REPLY, got.append)
    events = [Delta(request_id="r1", index=0, content="a"), script.ended()]
    assert [sink.offer(event) for event in events] == [True, True]
    assert got == events
    assert sink.closed
    assert sink.drain() == []


def test_a_callback_needs_its_function():
    """The error names what is missing."""
    kind = callback.enginebay_sink(callback.Options(), SinkContext())
    with pytest.raises(ValueError, match="deliver"):
        kind.open(REPLY)
