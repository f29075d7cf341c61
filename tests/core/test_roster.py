"""Who is in the engine, how they leave it, and what readers that take nothing cause."""

import pytest

from enginebay.conformance.effort import Effort
from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of, require_all_well
from enginebay.errors import EngineStopped, InvalidRequest
from enginebay.flow import SamplingParams
from enginebay.plugins.schedulers.chunked import Chunked, Options


def started(stall_seconds=30.0, depth=1, **limits):
    """A harness over the chunked policy."""
    return Harness(
        lambda given: Chunked(Options(), given),
        limits_of(**limits),
        stall_seconds=stall_seconds,
        depth=depth,
    )


def turns(harness, count):
    """So many turns, each at least a millisecond long."""
    for _ in range(count):
        if not harness.turn():
            harness.clock.wait_until(harness.clock.now + 0.001)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_reader_past_its_window_is_not_scheduled(depth):
    """Four tokens are emitted, then none until some are written; then four more."""
    harness = started(depth=depth)
    harness.submit(request_of("slow", num_prompt=5, max_tokens=11, window=4))
    answer = harness.answers.of["slow"]
    for written, emitted in ((0, 4), (4, 8), (5, 9), (9, 11)):
        harness.write("slow", written)
        turns(harness, 20)
        assert answer.num_tokens == emitted
    require_all_well(harness, "core/roster")


def test_a_reader_that_takes_nothing_is_cut():
    """After ``stall_seconds`` the request ends with its own reason, and a message."""
    harness = started(stall_seconds=2.0)
    harness.submit(request_of("slow", num_prompt=5, max_tokens=11, window=4))
    turns(harness, 10)
    harness.write("slow", 2)
    harness.finish()
    answer = harness.answers.of["slow"]
    assert answer.reasons == ("slow_reader",)
    assert answer.num_tokens == 6
    assert 2.0 < harness.clock.now < 2.3
    assert "reader" in answer.finished[0].message
    require_all_well(harness, "core/roster")


def test_each_choice_has_a_window_of_its_own():
    """One choice that is read goes on while another waits for its reader."""
    harness = started()
    harness.submit(request_of("two", num_prompt=5, max_tokens=9, n=2, window=3))
    turns(harness, 12)
    for number in range(1, 10):
        harness.write("two", number, index=1)
        turns(harness, 3)
    answer = harness.answers.of["two"]
    assert [len(answer.tokens[index]) for index in (0, 1)] == [3, 9]
    assert list(answer.finished) == [1]
    harness.write("two", 9)
    harness.finish()
    require_all_well(harness, "core/roster")


def test_a_stalled_sequence_gives_way_and_waits_for_its_reader():
    """It loses its blocks to others, is not started again before its reader has taken
    something, stands in nobody's way, and goes on where it was."""
    harness = started(num_blocks=8, block_size=4, max_model_len=32)
    harness.submit(request_of("slow", num_prompt=20, max_tokens=10, window=3))
    turns(harness, 6)
    harness.submit(request_of("other", num_prompt=20, max_tokens=9))
    harness.submit(request_of("next", num_prompt=20, max_tokens=9))
    turns(harness, 3000)
    others = [harness.answers.of[name] for name in ("other", "next")]
    assert [answer.reasons for answer in others] == [("length",)] * 2
    assert max(answer.ended_at for answer in others) < 0.5  # nobody waited for patience
    slow = harness.answers.of["slow"]
    assert slow.num_tokens == 3
    assert slow.ended is None
    for number in range(1, 11):
        harness.write("slow", number)
        turns(harness, 3)
    harness.finish()
    assert slow.reasons == ("length",)
    assert slow.ended.usage.num_preemptions == 1
    require_all_well(harness, "core/roster")


def test_a_stalled_sequence_that_was_preempted_is_cut_in_time():
    """Having lost its blocks does not give a slow reader more time."""
    harness = started(num_blocks=8, block_size=4, max_model_len=32, stall_seconds=3.0)
    harness.submit(request_of("slow", num_prompt=20, max_tokens=10, window=3))
    turns(harness, 6)
    harness.submit(request_of("other", num_prompt=20, max_tokens=9))
    harness.finish()
    assert harness.answers.of["slow"].reasons == ("slow_reader",)
    assert harness.clock.now < 3.2
    require_all_well(harness, "core/roster")


@pytest.mark.parametrize("when", range(8))
def test_a_cut_takes_all_choices(when):
    """Waiting, computing its prompt, shared, or half finished: every choice ends once."""
    harness = started(max_step_tokens=7)
    harness.submit(request_of("gone", num_prompt=12, max_tokens=3, n=3))
    harness.submit(request_of("stays", num_prompt=12, max_tokens=3, n=2))
    turns(harness, when)
    harness.cancel("gone")
    harness.cancel("gone")
    harness.cancel("never there")
    harness.finish()
    require_all_well(harness, "core/roster")
    assert harness.answers.of["stays"].reasons == ("length", "length")


def test_nothing_to_generate_ends_at_once():
    """``max_tokens`` 0 without prompt scores takes no seat and no step (case 13)."""
    harness = started()
    harness.submit(request_of("none", num_prompt=5, max_tokens=0, n=2))
    harness.finish()
    assert harness.audit.num_plans == 0
    assert harness.answers.of["none"].reasons == ("length", "length")


def test_prompt_scores_alone_generate_nothing():
    """``max_tokens`` 0 with prompt scores: every prompt token is scored, none drawn."""
    harness = started(max_step_tokens=4)
    request = request_of("scored", num_prompt=10, max_tokens=0)
    harness.submit(replaced(request, prompt_logprobs=1, max_tokens=0))
    harness.finish()
    answer = harness.answers.of["scored"]
    assert [entry.token.token_id for entry in answer.prompt.logprobs[1:]] == list(
        request.prompt.token_ids[1:]
    )
    assert answer.num_tokens == 0
    assert answer.reasons == ("length",)


def replaced(request, **sampling):
    """The same request with other sampling fields."""
    fields = {"seed": 1, "ignore_eos": True, **sampling}
    return type(request)(id=request.id, prompt=request.prompt, sampling=SamplingParams(**fields))


def test_an_id_is_free_again_once_its_request_ended():
    """While it is under way a second one is refused, naming the field."""
    harness = started()
    request = request_of("same", num_prompt=5, max_tokens=3)
    harness.submit(request)
    with pytest.raises(InvalidRequest, match="'same'"):
        harness.engine.submit(request, 0)
    harness.finish()
    harness.submit(request)
    harness.finish()
    require_all_well(harness, "core/roster")


def test_stopping_ends_what_was_accepted_a_moment_ago():
    """A request that was taken in while the engine closed gets its terminal event too."""
    harness = started()
    harness.submit(request_of("running", num_prompt=5, max_tokens=30))
    turns(harness, 2)
    harness.engine.stop()
    harness.submit(request_of("late", num_prompt=5, max_tokens=3))
    harness.turn()
    for name in ("running", "late"):
        assert "shutting down" in harness.answers.of[name].ended.error.message
    assert not harness.engine.busy
    with pytest.raises(EngineStopped, match="closed"):
        harness.submit(request_of("later", num_prompt=5, max_tokens=3))


def test_idle_pauses_match_what_is_waited_for():
    """Nobody: until woken. Only readers: a while. A policy that holds back: a moment."""
    harness = started()
    assert harness.roster.pause() is None
    harness.submit(request_of("slow", num_prompt=5, max_tokens=9, window=2))
    turns(harness, 4)
    assert harness.roster.pause() == pytest.approx(0.05)
    harness.submit(request_of("new", num_prompt=5, max_tokens=9))
    harness.engine.step()
    assert harness.roster.pause() < 0.01


def test_rejected_drafts_give_their_blocks_back():
    """After each step a table is as long as what is committed."""

    class Wrong:
        def propose(self, sequences, k):
            return [(0,) * k for _ in sequences]

    harness = Harness(
        lambda given: Chunked(Options(), given), limits_of(block_size=2), drafter=Wrong()
    )
    harness.submit(request_of("one", num_prompt=5, max_tokens=20))
    while harness.engine.busy:
        harness.turn()
        for sequence in harness.roster.seats.values():
            held = len(harness.allocator.tables[sequence.id])
            assert held == -(-sequence.num_computed // 2)
    require_all_well(harness, "core/roster")


def test_a_parked_sequence_can_be_cancelled():
    """It leaves like any other, and nobody waits for its reader any more."""
    harness = started(num_blocks=8, block_size=4, max_model_len=32)
    harness.submit(request_of("slow", num_prompt=20, max_tokens=10, window=3))
    turns(harness, 6)
    harness.submit(request_of("other", num_prompt=20, max_tokens=9))
    turns(harness, 3)
    assert harness.roster.parked
    harness.cancel("slow")
    harness.finish()
    assert not harness.roster.parked
    require_all_well(harness, "core/roster")


def test_the_executor_is_told_of_whom_it_can_forget():
    """Ended sequences are named in the next plan; nothing grows without bound."""
    harness = started()
    for number in range(5):
        harness.submit(request_of(f"r{number}", num_prompt=5, max_tokens=2 + number))
    harness.finish()
    harness.submit(request_of("last", num_prompt=5, max_tokens=2))
    turns(harness, 1)
    assert len(harness.executor.rows) == 1


def test_a_turn_costs_no_more_the_more_wait():
    """Submitting, planning, committing and watching: 40 times the queue, the same lines."""
    lines = []
    for num_waiting in (25, 1000):
        effort = Effort()
        harness = started(max_sequences=4)
        for number in range(num_waiting):
            harness.submit(request_of(f"r{number}", num_prompt=5, max_tokens=6))
        turns(harness, 3)
        with effort.counting():
            for number in range(8):
                harness.submit(request_of(f"more{number}", num_prompt=5, max_tokens=6))
                harness.cancel(f"r{num_waiting - 1 - number}")
                harness.turn()
        lines.append(effort.lines)
    assert lines[1] < 1.2 * lines[0]
