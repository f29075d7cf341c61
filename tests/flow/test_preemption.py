"""A pool far too small for its requests, on a real model: all finish, nothing changes."""

import pytest

from enginebay.flow import SamplingParams

SAMPLING = SamplingParams(max_tokens=14, ignore_eos=True, temperature=0.8, seed=7, logprobs=2)
PROMPTS = [
    [(11 * place + 5 * number) % 290 for place in range(3 + number % 9)] for number in range(32)
]
SMALL = {"engine__num_blocks": 16, "engine__block_size": 4, "engine__max_model_len": 40}
"""64 positions for 32 requests of 17 to 25."""


def answers(llm):
    """Tokens and log-probabilities of every request, and the sum of preemptions."""
    outputs = llm.generate(PROMPTS, SAMPLING)
    said = [(choice.token_ids, choice.logprobs) for out in outputs for choice in out.outputs]
    assert all(choice.finish_reason == "length" for out in outputs for choice in out.outputs)
    return said, sum(out.usage.num_preemptions for out in outputs)


@pytest.fixture(scope="module")
def undisturbed(tiny):
    """What a pool that holds everything answers."""
    from enginebay import LLM

    changes = {"engine.num_blocks": 512, "engine.max_model_len": 40}
    with LLM(tiny, stack="deterministic", overrides=changes) as llm:
        said, preemptions = answers(llm)
    assert preemptions == 0
    return said


class Moves:
    """Holds every block that is loaded from host memory against what was saved."""

    def __init__(self, llm):
        runner = llm.assembly.executor.runner
        self.store, self.move = runner.attention.store, runner._move
        self.saved, self.num_saved, self.num_loaded = {}, 0, 0
        runner._move = self.watched

    def watched(self, ops):
        """One at a time, so that each is seen before and after."""
        for op in ops:
            if op.kind == "save":
                self.saved[op.target] = self.store.export((op.source,))
                self.num_saved += 1
            self.move((op,))
            if op.kind == "load":
                assert self.store.export((op.target,)) == self.saved.pop(op.source)
                self.num_loaded += 1


@pytest.mark.parametrize(
    ("allocator", "how"),
    [
        ("paged", "recompute"),
        ("paged", "swap"),
        ("prefix-hash", "recompute"),
        ("prefix-hash", "swap"),
        ("prefix-radix", "swap"),
    ],
)
def test_sixteen_blocks_serve_thirty_two(start, undisturbed, allocator, how):
    """Preempted again and again: the same tokens and log-probabilities to the last bit, and
    blocks come back from host memory as they went."""
    llm = start(
        "deterministic",
        **SMALL,
        engine__swap_memory="1MiB" if how == "swap" else "0",
        allocator=allocator,
        options__scheduler__chunked__preemption=how,
    )
    moves = Moves(llm)
    said, preemptions = answers(llm)
    assert said == undisturbed
    assert preemptions > 0
    assert (moves.num_saved > 0) == (how == "swap")
    assert 0 < moves.num_loaded <= moves.num_saved or how == "recompute"
    timeline = llm.assembly.engine.intake.timeline
    events = [event for name in timeline.request_ids() for event in timeline.of(name)]
    ways = [event["how"] for event in events if event["what"] == "preempted"]
    assert len(ways) == preemptions
    assert set(ways) == {how}


@pytest.mark.parametrize("allocator", ["prefix-hash", "prefix-radix"])
def test_a_cache_changes_no_bit(start, undisturbed, allocator):
    """Cold, hot, and evicted in between: as without a cache; and it was used."""
    llm = start(
        "deterministic", engine__max_model_len=40, engine__block_size=4, allocator=allocator
    )
    cold, _ = answers(llm)
    hot = llm.generate(PROMPTS, SAMPLING)
    assert cold == undisturbed
    assert [(c.token_ids, c.logprobs) for out in hot for c in out.outputs] == undisturbed
    cached = [out.usage.cached_tokens for out in hot]
    assert cached == [(len(prompt) - 1) // 4 * 4 for prompt in PROMPTS]


def test_contiguous_regions_change_no_bit(start, undisturbed):
    """The baseline waits instead of preempting, and answers the same."""
    llm = start("deterministic", **SMALL, allocator="contiguous")
    said, preemptions = answers(llm)
    assert said == undisturbed
    assert preemptions == 0
