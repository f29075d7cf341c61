"""The default policy: first come first served, prompts in pieces, the youngest gives way."""

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of, require_all_well
from enginebay.plugins.schedulers.chunked import Chunked, Options


class Recorded(Harness):
    """A harness that keeps its plans."""

    def __init__(self, max_chunk=256, **limits):
        super().__init__(
            lambda given: Chunked(Options(max_chunk=max_chunk), given), limits_of(**limits)
        )
        self.plans = []
        execute = self.executor.execute

        def recorded(plan):
            names = {start.sequence_id: start.request_id for start in plan.started}
            self.names = {**getattr(self, "names", {}), **names}
            self.plans.append([(self.names[s.sequence_id], s.num_tokens) for s in plan.spans])
            return execute(plan)

        self.executor.execute = recorded

    def roster_marks(self, name):
        """Kinds and reasons of a request's timeline."""
        events = self.intake.timeline.of(name)
        return [{key: event.get(key) for key in ("what", "reason")} for event in events]

    def come(self, name, num_prompt, max_tokens, **fields):
        """Submit; later ones arrive later."""
        self.clock.wait_until(self.clock.now + 1e-6)
        self.submit(request_of(name, num_prompt=num_prompt, max_tokens=max_tokens, **fields))


def test_prompts_are_cut_and_ride_along_with_decodes():
    """What runs goes first; the rest of the step's tokens goes to prompts, in pieces."""
    harness = Recorded(max_chunk=6, max_step_tokens=8)
    harness.come("a", 3, 4)
    harness.turn()
    harness.come("b", 14, 2)
    harness.come("c", 2, 1)
    harness.finish()
    assert harness.plans == [
        [("a", 3)],
        [("a", 1), ("b", 6), ("c", 1)],
        [("a", 1), ("b", 6), ("c", 1)],
        [("a", 1), ("b", 2)],
        [("b", 1)],
    ]


def test_the_first_come_is_the_first_served():
    """With one seat, requests are answered in the order of their arrival."""
    harness = Recorded(max_sequences=1)
    for name in "abcd":
        harness.come(name, 5, 3)
    harness.finish()
    ends = [harness.answers.of[name].ended_at for name in "abcd"]
    assert ends == sorted(ends)


def test_a_prompt_waits_until_it_fits_whole():
    """Starting what can't end its prompt would only preempt somebody; a later small one
    does not overtake it."""
    harness = Recorded(num_blocks=10, block_size=4)
    harness.come("a", 20, 6)
    harness.turn()
    harness.come("big", 22, 2)
    harness.come("small", 3, 2)
    harness.finish()
    require_all_well(harness, "chunked")
    assert all(len(plan) == 1 for plan in harness.plans[:6])
    assert [name for name, _ in harness.plans[6]] == ["big", "small"]
    marks = harness.roster_marks("big")
    assert {"what": "waiting", "reason": "blocks"} in marks


def test_alone_even_a_prompt_that_does_not_fit_is_started():
    """Nothing else will give blocks back, so the core must be let find out."""
    harness = Recorded(num_blocks=3, block_size=4, max_model_len=100)
    harness.come("huge", 40, 2)
    harness.finish()
    assert harness.answers.of["huge"].reasons == ("capacity",)
    assert harness.clock.now < 0.1


def test_the_youngest_gives_way_and_comes_back_before_later_ones():
    """A preempted sequence keeps its place: nobody younger takes the blocks it left."""
    harness = Recorded(num_blocks=15, block_size=4, max_model_len=40)
    for name in ("old", "middle", "young"):
        harness.come(name, 11, 16)
    while harness.allocator.num_free > 2:
        harness.turn()
    harness.come("late", 10, 2)
    harness.finish()
    require_all_well(harness, "chunked")
    preemptions = [harness.answers.of[n].ended.usage.num_preemptions for n in harness.answers.of]
    assert preemptions == [0, 0, 1, 0]
    prompts = [name for plan in harness.plans for name, count in plan if count > 1]
    assert prompts == ["old", "middle", "young", "young", "late"]
