"""Runs that can be counted by hand: every step takes one second."""

import pytest

from enginebay.config import load_stack
from enginebay.errors import PluginError, StackError
from enginebay.simulation.candidate import candidate, limits_of
from enginebay.simulation.cost import Cost
from enginebay.simulation.fairness import Fairness
from enginebay.simulation.figures import Objective, figures, spread
from enginebay.simulation.play import play, request_of
from enginebay.simulation.table import table
from enginebay.simulation.trace import Call

SECOND = Cost(step=1.0, token=0.0, context=0.0, block=0.0)
ALL = Objective(ttft=100, itl=100)


def ran(calls, objective=ALL, cost=SECOND, overrides=None, **bounds):
    """Figures of a run of the cpu stack, and the run."""
    stack = load_stack("cpu", overrides)
    played = play(candidate("x", stack, limits_of(stack, calls, bounds)), calls, cost)
    return figures(played, objective), played


def call(time=0.0, prompt=10, output=3, **fields):
    """A small call."""
    return Call(time=time, prompt_tokens=prompt, output_tokens=output, **fields)


def test_one_request_is_counted_by_hand():
    """One step for the prompt and first token, one for each other."""
    told, played = ran([call()])
    assert (told.done, told.steps, told.seconds) == (1, 3, 3.0)
    assert (told.ttft.p50, told.itl.p99, told.e2e.max) == (1.0, 1.0, 3.0)
    assert told.tokens_per_second == 1.0
    assert played.recorder.tracks["00000", 0].token_times == [1, 2, 3]
    kinds = [(s.kind, s.begin, s.end, s.num_tokens) for s in _segments(played)]
    assert kinds == [("prefill", 0, 1, 10), ("decode", 1, 3, 2)]


def _segments(played, name="00000", index=0):
    return played.recorder.tracks[name, index].segments


def test_who_waits_waits_for_a_seat():
    """With one seat the second begins when the first has ended."""
    told, played = ran([call(), call()], max_sequences=1)
    assert (told.ttft.max, told.e2e.max, told.seconds) == (4.0, 6.0, 6.0)
    assert played.recorder.tracks["00001", 0].started == 3.0


def test_what_is_good():
    """The first token in time, the others on average; goodput is good ones a second."""
    told, _ = ran([call(), call()], Objective(ttft=3, itl=1), max_sequences=1)
    assert (told.good, told.goodput) == (1, 1 / 6)
    assert ran([call()], Objective(ttft=3, itl=0.9))[0].good == 0


def test_answers_end_where_the_trace_says():
    """Callers allow more than the answer has; each choice has its own tokens."""
    told, played = ran([call(output=4, max_tokens=40, n=2)])
    assert told.done == 1
    tracks = [played.recorder.tracks["00000", index] for index in (0, 1)]
    assert [len(track.token_times) for track in tracks] == [4, 4]
    assert {track.reason for track in tracks} == {"stop"}


def test_refusals_and_misses_are_told():
    """By plugin and reason; a deadline that passed is a miss."""
    overrides = {"options.door.bounded-queue.max_waiting": 1}
    calls = [call(), call(), call(deadline=2.0)]
    told, _ = ran(calls, overrides=overrides, max_sequences=1)
    assert (told.done, told.refused) == (1, 2)
    assert [*told.refusals.values()] == [2]
    assert "bounded-queue" in next(iter(told.refusals))
    told, _ = ran([call(), call(deadline=2.0)], max_sequences=1)
    assert (told.done, told.missed, told.failed) == (1, 1, 0)


@pytest.mark.parametrize(("slots", "how"), [(0, "recompute"), (40, "swap")])
def test_preemptions_by_how_they_were_done(slots, how):
    """What is lost is computed again, what is saved is not."""
    calls = [call(prompt=6, output=40) for _ in range(8)]
    told, played = ran(
        calls,
        cost=Cost(step=0.01, token=0.01, block=1e-6),
        overrides={"options.scheduler.chunked.preemption": how},
        num_blocks=16,
        block_size=4,
        num_swap_blocks=slots,
    )
    assert told.done == 8
    assert told.preemptions.keys() == {how}
    assert (told.recomputed_tokens > 0) == (how == "recompute") != (told.saved_blocks > 0)
    kinds = {s.kind for key in played.recorder.tracks for s in _segments(played, *key)}
    assert ("recompute" in kinds) == (how == "recompute")
    assert told.kv_peak == 1.0


def test_shared_prefixes_are_hit():
    """Calls of one tenant and prefix begin alike, and no others do."""
    shared = {"prompt": 64, "prefix": "p", "prefix_tokens": 48}
    calls = [call(time=10.0 * n, tenant=t, **shared) for n, t in enumerate("aab")]
    told, _ = ran(calls, overrides={"allocator": "prefix-hash"})
    assert told.prefix_hit_rate == pytest.approx(48 / (3 * 64))
    prompts = [request_of(n, c).prompt.token_ids for n, c in enumerate(calls)]
    assert prompts[0][:48] == prompts[1][:48] != prompts[2][:48]
    assert prompts[0][48:] != prompts[1][48:]


def test_occupancy_and_waste():
    """13 positions in blocks of 16: one block of a pool of ten, partly idle."""
    told, _ = ran([call(output=3)], num_blocks=10, block_size=16)
    assert told.kv_peak == 0.1
    assert 0.2 < told.kv_waste < 0.5


def test_percentiles_fall_between_neighbours():
    """As numpy's default does."""
    told = spread([4.0, 1.0, 2.0, 3.0, 5.0])
    assert (told.p50, told.p95, told.max, told.count) == (3.0, 4.8, 5.0, 5)
    assert spread([]) is None


def test_fairness_counts_while_both_wait():
    """A gap grows only while both tenants are backlogged; Jain's index of their rates."""
    fairness = Fairness()
    fairness.step(1.0, {"a": 100.0}, {"a"})
    assert (fairness.gap, fairness.jain) == (0.0, None)
    fairness.step(1.0, {"a": 10.0}, {"a", "b"})
    fairness.step(1.0, {"a": 10.0, "b": 2.0}, {"a", "b"})
    assert fairness.gap == 18.0
    assert fairness.jain == pytest.approx(22**2 / (2 * (20**2 + 2**2)))
    fairness.step(1.0, {"a": 500.0}, {"a"})
    fairness.step(1.0, {"b": 5.0}, {"a", "b"})
    assert fairness.gap == 18.0


def test_a_table_has_a_column_a_run():
    """Names on top, figures below, refusals last."""
    told, _ = ran([call()])
    lines = table([told, told]).splitlines()
    assert lines[0].split() == ["x", "x"]
    assert "requests done" in lines[2]


def test_mistakes_are_told_before_anything_runs():
    """A bound of nothing, an unknown plugin, an unknown option."""
    stack = load_stack("cpu")
    with pytest.raises(StackError, match="block_size = 0: must be 1 or more"):
        limits_of(stack, [call()], {"block_size": 0})
    limits = limits_of(stack, [call()], {})
    with pytest.raises(PluginError, match="did you mean 'chunked'"):
        candidate("x", load_stack("cpu", {"scheduler": "chunkd"}), limits)
    wrong = load_stack("cpu", {"options.scheduler.chunked.max_chunks": 3})
    with pytest.raises(StackError, match="max_chunks"):
        candidate("x", wrong, limits)
