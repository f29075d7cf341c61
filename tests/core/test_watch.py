"""The watch: what becomes of a step in marks and records."""

import pytest

from enginebay.conformance.clocks import VirtualClock
from enginebay.conformance.harness import CLIENT, Harness
from enginebay.conformance.hash_model import continuation
from enginebay.conformance.mutants.caching import Caching
from enginebay.conformance.traffic import VOCAB_SIZE, request_of
from enginebay.conformance.worlds import limits_of
from enginebay.flow import EventBatch
from enginebay.plugins.schedulers.chunked import Chunked, Options
from enginebay.timeline import latencies


class Kept:
    """An observer that keeps everything it is told."""

    def __init__(self):
        self.steps, self.requests, self.refusals, self.closed = [], [], [], 0
        self.on_step = self.steps.append
        self.on_request = self.requests.append
        self.on_refusal = self.refusals.append

    def render(self):
        return "kept"

    def close(self):
        self.closed += 1


def harness_of(*observers, how="recompute", **options):
    """An engine that tells an observer."""
    bounds = {key: options.pop(key) for key in list(options) if key.startswith(("num_", "max_"))}
    return Harness(
        lambda given: Chunked(Options(preemption=how), given),
        limits_of(**bounds),
        observers=[(f"kept{n}", observer) for n, observer in enumerate(observers)],
        **options,
    )


@pytest.mark.parametrize("depth", [1, 2])
def test_a_batch_carries_the_number_of_the_step_it_came_from(depth):
    """With several plans in flight it is the committed one's, not the planned one's."""
    kept, batches = Kept(), []
    harness = harness_of(kept, depth=depth)
    harness.engine.attach(CLIENT, batches.append)
    harness.submit(request_of("r", num_prompt=4, max_tokens=6))
    while harness.engine.busy:
        harness.turn()
    steps = [record.step for record in kept.steps if record.num_generated]
    assert [batch.step for batch in batches] == steps
    assert all(isinstance(batch, EventBatch) for batch in batches)


def test_events_of_no_step_carry_the_last_one():
    """A cancel before the first step carries -1."""
    batches = []
    harness = harness_of()
    harness.engine.attach(CLIENT, batches.append)
    harness.submit(request_of("r", num_prompt=4, max_tokens=6))
    harness.engine.cancel("r")
    harness.turn()
    assert [batch.step for batch in batches] == [-1]


@pytest.mark.parametrize("depth", [1, 2])
def test_intervals_and_delays_are_those_of_the_tokens(depth):
    """Each token of a choice but its first has an interval, however many steps are in
    flight; first tokens count from arrival."""
    kept = Kept()
    harness = harness_of(kept, depth=depth)
    for name in ("a", "b"):
        harness.submit(request_of(name, num_prompt=9, max_tokens=12))
    harness.finish()
    intervals = [seconds for record in kept.steps for seconds in record.token_intervals]
    delays = [seconds for record in kept.steps for seconds in record.first_token_delays]
    assert len(delays) == 2
    assert len(intervals) == 2 * 11
    ready = {
        name: [
            time
            for event in harness.intake.timeline.of(name)
            if event["what"] == "token_ready"
            for time in event["times"]
        ]
        for name in ("a", "b")
    }
    assert sum(intervals) + sum(delays) == pytest.approx(sum(t[-1] for t in ready.values()))


def test_prefill_and_decode_and_what_a_prompt_cost():
    """Prompt positions are prefill, later ones decode; a shared prompt is computed once."""
    kept = Kept()
    harness = harness_of(kept, max_step_tokens=8)
    harness.submit(request_of("r", num_prompt=20, max_tokens=5, n=2))
    harness.finish()
    assert sum(r.num_prefill_tokens for r in kept.steps) == 20 + 1
    assert sum(r.num_decode_tokens for r in kept.steps) == 2 * 4
    assert sum(r.num_prompt_tokens for r in kept.steps) == 40
    assert sum(r.num_cached_prompt_tokens for r in kept.steps) == 19
    assert sum(r.num_prefix_queries for r in kept.steps) == 40
    assert sum(r.num_prefix_hits for r in kept.steps) == 19
    assert kept.requests[0].choice_tokens == (5, 5)


def test_served_tokens_are_told_by_tenant():
    """Their sums are the step's."""
    kept = Kept()
    harness = harness_of(kept)
    for name, tenant in (("r", "a"), ("s", "b"), ("t", "b")):
        harness.submit(request_of(name, num_prompt=10, max_tokens=4, tenant=tenant))
    harness.finish()
    served = {}
    for record in kept.steps:
        assert sum(s.num_generated for s in record.served) == record.num_generated
        assert sum(s.num_prefill_tokens for s in record.served) == record.num_prefill_tokens
        for share in record.served:
            before = served.get(share.tenant, (0, 0))
            served[share.tenant] = (
                before[0] + share.num_prefill_tokens,
                before[1] + share.num_generated,
            )
    assert served == {"a": (10, 4), "b": (20, 8)}


@pytest.mark.parametrize("how", ["swap", "recompute"])
def test_preemptions_are_told_one_by_one(how):
    """As the timelines tell them, with what was moved or computed again."""
    kept = Kept()
    harness = harness_of(kept, how=how, num_blocks=16, max_model_len=60, num_swap_blocks=64)
    for number in range(8):
        harness.submit(request_of(f"r{number}", num_prompt=6, max_tokens=40))
    harness.finish()
    told = [preemption for record in kept.steps for preemption in record.preemptions]
    timeline = harness.intake.timeline
    marked = [e for name in harness.answers.of for e in timeline.of(name)]
    marked = [event for event in marked if event["what"] == "preempted"]
    assert len(told) == len(marked) == sum(record.num_preemptions for record in kept.steps) > 0
    assert {p.how for p in told} == {how}
    assert sorted(p.num_tokens for p in told) == sorted(e["num_tokens"] for e in marked)
    used = [record.num_used_swap_blocks for record in kept.steps]
    assert (max(used) > 0) == (how == "swap")
    assert used[-1] == 0
    assert kept.steps[0].num_swap_blocks == 64


class Half:
    """A drafter whose first two guesses are right and whose third is not."""

    def propose(self, sequences, k):
        guesses = []
        for view in sequences:
            tokens = continuation(view.token_ids, 3, seed=seed_of(view), vocab_size=VOCAB_SIZE)
            guesses.append((*tokens[:2], (tokens[2] + 1) % VOCAB_SIZE)[:k])
        return guesses


def seed_of(view):
    """The request's."""
    return view.sampling.seed


def test_drafts_are_counted_by_their_place():
    """How many were tried, and at which place of a draft how many stood."""
    kept = Kept()
    harness = harness_of(kept, drafter=Half())
    harness.submit(request_of("r", num_prompt=4, max_tokens=10))
    harness.finish()
    drafts = sum(record.num_drafts for record in kept.steps)
    stood = [record.accepted_drafts for record in kept.steps if record.num_drafts]
    assert drafts == 3
    assert sum(record.num_draft_tokens for record in kept.steps) == 8
    assert stood == [(1, 1)] * 3
    assert sum(record.num_generated for record in kept.steps) == 10


def test_reports_after_the_end_are_marked():
    """The last tokens are on their way when a request ends; their time is not lost."""
    harness = harness_of()
    harness.submit(request_of("r", num_prompt=4, max_tokens=5))
    harness.finish()
    harness.write("r", 3)
    harness.write("r", 5)
    harness.write("r", 4)
    harness.turn()
    events = harness.intake.timeline.of("r")
    written = [event for event in events if event["what"] == "token_written"]
    assert [event["counts"] for event in written] == [[3, 2]]
    assert latencies(events).transport is not None


def test_a_report_that_falls_back_changes_nothing():
    """Late or repeated reports neither count twice nor stall a reader."""
    harness = harness_of()
    harness.submit(request_of("r", num_prompt=4, max_tokens=20, window=4))
    for _ in range(4):
        harness.turn()
    for number in (3, 1, 3):
        harness.write("r", number)
    harness.turn()
    (sequence,) = harness.roster.sequences.values()
    assert sequence.num_written == 3
    events = harness.intake.timeline.of("r")
    assert [e["counts"] for e in events if e["what"] == "token_written"] == [[3]]


def test_reports_of_unknown_requests_and_choices_are_ignored():
    """A transport can't make the engine fail."""
    harness = harness_of()
    harness.submit(request_of("r", num_prompt=4, max_tokens=1))
    harness.finish()
    for name, index in (("r", 1), ("r", -1), ("nobody", 0)):
        harness.write(name, 1, index)
    harness.turn()
    assert harness.engine.state == "ready"


class Turns(Chunked):
    """Runs one of two sequences a step, and says why not the other."""

    def plan(self, build):
        running = list(build.running)
        if len(running) < 2:
            super().plan(build)
            return
        self.turn = not getattr(self, "turn", False)
        build.run(running[self.turn])
        build.wait(running[not self.turn], "turn")


def test_a_wait_is_marked_each_time_it_begins():
    """Held back, run, held back again for the same reason: a mark each time; while it
    goes on, none."""
    harness = Harness(lambda given: Turns(Options(), given), limits_of())
    for name in ("a", "b"):
        harness.submit(request_of(name, num_prompt=4, max_tokens=5))
    harness.finish()
    for name in ("a", "b"):
        events = harness.intake.timeline.of(name)
        (wait,) = [event for event in events if event["what"] == "waiting"]
        (steps,) = [e for e in events if e["what"] == "scheduled" and len(e["times"]) > 1]
        assert (wait["reason"], wait["index"]) == ("turn", 0)
        assert len(wait["times"]) >= 3
        assert not set(wait["times"]) & set(steps["times"])


def test_the_engine_closes_its_observers_once_and_goes_on_rendering():
    """Whatever ends it; the gauges come to rest before."""
    kept = Kept()
    harness = harness_of(kept, clock=None)
    harness.submit(request_of("r", num_prompt=4, max_tokens=50))
    harness.turn()
    assert kept.steps[-1].num_running == 1
    harness.engine.stop()
    harness.engine.run()
    assert kept.closed == 1
    assert (kept.steps[-1].num_running, kept.steps[-1].num_used_blocks) == (0, 0)
    (record,) = kept.requests
    assert (record.reasons, record.error) == (("error",), "the server is shutting down")
    assert [e["what"] for e in harness.intake.timeline.of("r")][-2:] == ["finished", "released"]
    assert harness.engine.watch.render() == "kept"


def test_a_failed_engine_tells_its_observers_without_asking_its_allocator():
    """Its state is unknown; requests are counted as errors and nothing seems to run."""
    kept = Kept()
    harness = harness_of(kept)
    harness.submit(request_of("r", num_prompt=4, max_tokens=50))
    harness.turn()

    class Broken:
        """An allocator in pieces."""

        def __getattr__(self, name):
            raise RuntimeError(name)

    harness.engine.blocks.allocator = Broken()
    harness.engine.state = "ready"
    harness.engine.run()
    assert harness.engine.state == "failed"
    assert kept.closed == 1
    assert (kept.steps[-1].num_running, kept.steps[-1].num_waiting) == (0, 0)
    assert kept.requests[0].error


def test_an_observer_that_fails_to_close_is_named():
    """The others are closed all the same."""

    class Stuck(Kept):
        """It can't."""

        def close(self):
            raise OSError("no space")

    stuck, kept = Stuck(), Kept()
    harness = harness_of(stuck, kept)
    harness.engine.watch.close(harness.engine)
    assert harness.engine.watch.switched_off == ["kept0"]
    assert kept.closed == 1


def test_waiting_grows_older_while_nothing_runs():
    """The oldest wait is told once a second although no step is made."""
    kept = Kept()
    harness = harness_of(kept)
    harness.submit(request_of("r", num_prompt=4, max_tokens=2))
    engine = harness.engine
    for seconds in (0.5, 1.5, 1.75, 2.75):
        harness.clock.wait_until(seconds)
        engine.watch.idle(engine)
    assert [record.oldest_wait for record in kept.steps] == [0.5, 1.5, 2.75]


def test_cached_and_evicted_blocks_are_told():
    """Of an allocator that keeps prefixes."""
    kept = Kept()
    harness = harness_of(kept, make_allocator=Caching, num_blocks=16)
    for number in range(6):
        harness.submit(request_of(f"r{number}", num_prompt=17, max_tokens=3))
        harness.finish()
    assert kept.steps[-1].num_cached_blocks == harness.allocator.num_cached > 0
    assert sum(r.num_evicted_blocks for r in kept.steps) == harness.allocator.num_evicted > 0


class Ticking(VirtualClock):
    """A clock that no two readers find at the same time."""

    def __call__(self):
        self.wait_until(super().__call__() + 1e-6)
        return super().__call__()


def test_moments_are_marked_in_the_order_they_happen():
    """A request that came while a turn began is admitted before it is started."""
    harness = harness_of(clock=Ticking())
    for name in ("a", "b"):
        harness.submit(request_of(name, num_prompt=4, max_tokens=3))
        harness.turn()
    harness.finish()
    for name in ("a", "b"):
        events = harness.intake.timeline.of(name)
        times = [event["time"] for event in events]
        assert times == sorted(times)
        steps = [event for event in events if event["what"] == "scheduled"]
        ends = [end for event in steps for end in event["ends"]]
        ready = [event["times"] for event in events if event["what"] == "token_ready"]
        assert ends == [time for times in ready for time in times]
