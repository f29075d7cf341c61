"""The waiting queue that policies share."""

from types import SimpleNamespace

import pytest

from enginebay.errors import IntegrityError
from enginebay.plugins.schedulers.queue import WaitingQueue


def waiting(number, arrival=0.0):
    """Something that can be queued."""
    return SimpleNamespace(id=number, arrival=arrival)


def test_the_order_is_the_keys():
    """By arrival, then by id; who left is skipped, who came back has its old place."""
    queue = WaitingQueue()
    for number, arrival in ((3, 1.0), (1, 2.0), (2, 1.0)):
        queue.add(waiting(number, arrival))
    order = []
    for _ in range(2):
        order.append(queue.first().id)
        queue.remove(order[-1])
    queue.add(waiting(2, 1.0))
    assert (order, queue.first().id, len(queue)) == ([2, 3], 2, 2)


def test_leavers_do_not_pile_up():
    """The heap is not longer than twice what waits, however many came and left."""
    queue = WaitingQueue()
    queue.add(waiting(0, -1.0))
    for number in range(1, 2000):
        queue.add(waiting(number))
        queue.remove(number)
    assert len(queue._heap) < 100
    assert (queue.first().id, len(queue)) == (0, 1)
    queue.check_integrity()


def test_a_lost_sequence_is_seen():
    """A waiting sequence without a place in the heap would never start."""
    queue = WaitingQueue()
    queue.add(waiting(7))
    queue._heap.clear()
    with pytest.raises(IntegrityError, match=r"\[7\]"):
        queue.check_integrity()
