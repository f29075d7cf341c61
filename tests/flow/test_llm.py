"""LLM: many prompts at once, and nothing left behind by what goes wrong."""

import time

import pytest

from enginebay import SamplingParams
from enginebay.errors import CapacityError, InvalidRequest, StackError
from enginebay.outputs import RequestFailed

GREEDY = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)


def wait_idle(llm):
    """The step thread takes cancels in at its next step."""
    until = time.monotonic() + 10
    while llm.assembly.engine.busy and time.monotonic() < until:
        time.sleep(0.01)


def test_more_prompts_than_the_queue_holds(start):
    """A program's own prompts wait their turn instead of being refused, in order."""
    options = {"options__door__bounded-queue__max_waiting": 2, "engine__max_sequences": 2}
    llm = start(**options)
    prompts = [[5, 6, 3 + index] for index in range(30)]
    together = llm.generate(prompts, GREEDY)
    assert [list(output.prompt_token_ids) for output in together] == prompts
    assert together[-1].outputs == llm.generate(prompts[-1], GREEDY).outputs


def test_a_failed_prompt_leaves_nothing(start):
    """One prompt fails or is wrong: the call raises, and the others are cancelled."""
    llm = start()
    long = SamplingParams(max_tokens=400, ignore_eos=True)
    banned = SamplingParams(max_tokens=9, min_tokens=9, stop_token_ids=tuple(range(300)))
    with pytest.raises(RequestFailed, match="every token is banned"):
        llm.generate([[5], [6], [7]], [banned, long, long])
    with pytest.raises(InvalidRequest, match="prompt"):
        llm.generate([[5], [-1]], long)
    with pytest.raises(InvalidRequest, match="nope"):
        next(llm.stream("a", SamplingParams(nope=1)))
    wait_idle(llm)
    assert not llm._queues


def test_an_interrupt_cancels(start, monkeypatch):
    """Ctrl-C while a program waits: what it asked for is not computed to its end."""
    llm = start()

    def interrupted(*parts):
        raise KeyboardInterrupt

    monkeypatch.setattr(llm, "_collect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[5], [6]], SamplingParams(max_tokens=500, ignore_eos=True))
    wait_idle(llm)
    assert not llm._queues


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_size", 0),
        ("num_blocks", -1),
        ("max_step_tokens", 0),
        ("max_sequences", 0),
        ("max_model_len", -1),
        ("num_drafts", -1),
        ("max_logprobs", -1),
        ("stall_seconds", float("nan")),
    ],
)
def test_bounds_without_use(start, key, value):
    """A bound under which nothing can be computed stops the start: key, value, fix."""
    with pytest.raises(StackError, match=rf"engine\.{key} = {value}: must be [01] or more"):
        start(**{f"engine__{key}": value})


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"engine__max_model_len": 513}, StackError, r"max_model_len = 513: the model has 512"),
        ({"engine__num_blocks": 10**11}, CapacityError, "lower engine.num_blocks"),
        ({"frontends": []}, StackError, "frontends is empty; add"),
        ({"options__scheduler__chunked__max_chunk": 0}, StackError, "max_chunk is 0; it must"),
    ],
)
def test_starts_that_cannot_work(start, changes, error, told):
    """One line that names key, value and fix."""
    with pytest.raises(error, match=told):
        start(**changes)


def test_the_context_ends_without_admission(start):
    """A stack that checks no lengths still computes no position past the context."""
    llm = start(budget=[])
    scored = SamplingParams(max_tokens=0, prompt_logprobs=0)
    assert len(llm.generate([5] * 512, scored).prompt_logprobs) == 512
    with pytest.raises(InvalidRequest, match="513 tokens, the context 512"):
        llm.generate([5] * 513, scored)


def test_a_panic_is_a_failure(start, monkeypatch):
    """What is no ``Exception`` (a panic in a Rust library) ends the requests as well."""

    class Panic(BaseException):
        pass

    def panics(handle):
        raise Panic

    llm = start()
    monkeypatch.setattr(llm.assembly.engine.executor, "collect", panics)
    with pytest.raises(RequestFailed, match="the engine failed"):
        llm.generate([5], GREEDY)
    assert llm.client.health().state == "failed"
    engine = llm.assembly.engine
    for sequence_id in (1, 2):  # a failed engine touches no blocks; the fixture looks at them
        engine.allocator.free(sequence_id)
