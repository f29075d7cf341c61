"""A long prompt among streams: who waits for whom, in the seconds of an imagined engine."""

from itertools import pairwise

import pytest

from enginebay.conformance.recorded import Recorded
from enginebay.conformance.worlds import limits_of
from enginebay.plugins.schedulers.chunked import Chunked
from enginebay.plugins.schedulers.chunked import Options as ChunkedOptions
from enginebay.plugins.schedulers.decode_first import DecodeFirst
from enginebay.plugins.schedulers.decode_first import Options as DecodeFirstOptions
from enginebay.plugins.schedulers.fcfs import Fcfs
from enginebay.plugins.schedulers.fcfs import Options as FcfsOptions
from enginebay.plugins.schedulers.prefill_first import Options as PrefillFirstOptions
from enginebay.plugins.schedulers.prefill_first import PrefillFirst
from enginebay.plugins.schedulers.static import Static

POLICIES = {
    "chunked": lambda limits: Chunked(ChunkedOptions(max_chunk=256), limits),
    "decode-first": lambda limits: DecodeFirst(DecodeFirstOptions(), limits),
    "fcfs": lambda limits: Fcfs(FcfsOptions(), limits),
    "prefill-first": lambda limits: PrefillFirst(PrefillFirstOptions(), limits),
    "static": lambda limits: Static(16, "cheapest", limits),
}


def met(policy, max_step_tokens):
    """(largest gap among the streams' that overlap its prompt, its time to first token)."""
    limits = limits_of(
        max_step_tokens=max_step_tokens,
        max_sequences=16,
        num_blocks=600,
        block_size=16,
        max_model_len=4200,
    )
    harness = Recorded(POLICIES[policy], limits, verify=False)
    streams = [f"stream-{number}" for number in range(8)]
    for name in streams:
        harness.come(name, 20, 120)
    for _ in range(20):
        harness.turn()
    arrival = harness.clock.now
    harness.come("long", 4000, 2)
    harness.finish()
    first = harness.token_times["long"][0]
    gaps = [
        later - sooner
        for name in streams
        for sooner, later in pairwise(harness.token_times[name])
        if later > arrival and sooner < first
    ]
    return max(gaps, default=0.0), first - arrival


@pytest.mark.parametrize("max_step_tokens", [8192, 1024])
def test_chunks_let_streams_flow_and_prompts_first_do_not(max_step_tokens):
    """Whether the prompt takes one step or four: under ``chunked`` the largest gap is a
    third at most of that under ``prefill-first``, where the prompt has its answer first."""
    of = {policy: met(policy, max_step_tokens) for policy in POLICIES}
    assert of["chunked"][0] <= of["prefill-first"][0] / 3
    for policy in ("chunked", "decode-first", "fcfs", "static"):
        assert of["prefill-first"][1] < of[policy][1]


def test_a_locked_batch_disturbs_nobody_and_lets_the_prompt_wait():
    """Under ``static`` streams never feel the prompt: it waits until the last has ended."""
    gap, first = met("static", 8192)
    _, chunked = met("chunked", 8192)
    assert gap < 0.01
    assert first > 1.5 * chunked
