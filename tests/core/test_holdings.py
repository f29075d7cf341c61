"""An allocator that answers nonsense ends the engine by its own fault."""

import pytest

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of
from enginebay.hookspecs.allocator import Match, Reservation
from enginebay.plugins.allocators.paged import Paged
from enginebay.plugins.schedulers.chunked import Chunked, Options


def answering(method, answer):
    """An allocator with one method that always answers the same."""
    return type("Liar", (Paged,), {method: lambda self, *asked: answer})


@pytest.mark.parametrize(
    ("method", "answer", "told"),
    [
        ("match", Match(num_tokens=10, block_ids=(0, 1, 2)), "found 10 positions of 10"),
        ("match", Match(num_tokens=-4), "found -4 positions of 10"),
        ("match", Match(num_tokens=8, block_ids=(0,)), "1 blocks for 8 positions"),
        ("fork", Match(num_tokens=12, block_ids=(0, 1, 2)), "found 12 positions of 10"),
        ("reserve", Reservation(block_ids=(0, 1)), "2 blocks for 10 positions"),
        ("reserve", Reservation(first=2, block_ids=(0,)), "a table of 0 blocks from 2 on"),
        ("reserve", Reservation(block_ids=(0, 1, 64)), "blocks from 0 to 64; there are those"),
        ("reserve", Reservation(block_ids=(0, 1, -1)), "blocks from -1 to 1; there are those"),
    ],
)
def test_a_wrong_answer_is_named_and_ends_every_request_once(method, answer, told):
    """Neither garbage is read, nor does anybody wait for ever."""
    allocator = answering(method, answer)
    harness = Harness(
        lambda given: Chunked(Options(), given), limits_of(), make_allocator=allocator
    )
    for number in range(3):
        harness.submit(request_of(f"r{number}", num_prompt=10, max_tokens=3, n=2))
    harness.play(max_turns=500)
    assert harness.engine.state == "failed"
    assert "Liar" in harness.engine.failure
    assert told in harness.engine.failure
    assert [answer.reasons for answer in harness.answers.of.values()] == [("error", "error")] * 3
    assert harness.intake.num_held == 0
