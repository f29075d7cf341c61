"""A request whose deadline passed ends, wherever it is: its answer is worthless."""

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of
from enginebay.plugins.schedulers.chunked import Chunked, Options


def ends(harness, name):
    """Reasons, and the moment."""
    answer = harness.answers.of[name]
    return answer.reasons, answer.ended_at


def test_running_and_waiting_requests_end_at_their_deadline():
    """One in the middle of its answer, one that never got a seat; others go on."""
    harness = Harness(lambda given: Chunked(Options(), given), limits_of(max_sequences=1))
    harness.submit(request_of("runs", num_prompt=4, max_tokens=100, deadline=0.2))
    harness.submit(request_of("waits", num_prompt=4, max_tokens=5, deadline=0.1))
    harness.submit(request_of("patient", num_prompt=4, max_tokens=5))
    harness.submit(request_of("in time", num_prompt=4, max_tokens=5, deadline=60.0))
    harness.finish()
    for name, deadline in (("runs", 0.2), ("waits", 0.1)):
        reasons, moment = ends(harness, name)
        assert reasons == ("deadline",)
        assert deadline <= moment < deadline + 0.02
    assert harness.answers.of["runs"].num_tokens > 10
    assert ends(harness, "patient")[0] == ends(harness, "in time")[0] == ("length",)
    assert harness.allocator.num_free == harness.limits.num_blocks


def test_who_ended_long_before_its_deadline_is_forgotten():
    """Far deadlines cost memory while their requests last, and the others keep theirs."""
    harness = Harness(lambda given: Chunked(Options(), given), limits_of(max_sequences=2))
    harness.submit(request_of("long", num_prompt=4, max_tokens=400, deadline=0.7))
    for number in range(150):
        harness.submit(request_of(f"r{number}", num_prompt=1, max_tokens=1, deadline=1e300))
        harness.turn()
    assert len(harness.roster._deadlines) < 100
    harness.finish()
    assert ends(harness, "long")[0] == ("deadline",)
