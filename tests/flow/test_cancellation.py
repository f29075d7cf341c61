"""Requests cancelled at any moment: one terminal event each, and everything comes back."""

import random
import threading
import time
from collections import Counter

import msgspec

from enginebay import Request
from enginebay.conformance.invariance import GREEDY, SEEDED
from enginebay.flow import Ended, TokenPrompt
from enginebay.plugins.transports.inproc import Inproc

from .conftest import assert_idle


def test_two_hundred_requests_cancelled_at_random_moments(start):
    """Waiting, in prefill, decoding, forking, ending: used blocks return to zero."""
    llm = start("cpu", engine__num_blocks=64, engine__max_sequences=8)
    seed = 20261129
    rng = random.Random(seed)
    ended = Counter()
    seen = threading.Event()

    def listen(batch):
        for event in batch.events:
            ended[event.request_id] += isinstance(event, Ended)
        if sum(ended.values()) >= 200:
            seen.set()

    client = Inproc(llm.assembly.engine)
    client.events(listen)
    for number in range(200):
        prompt = tuple(rng.randrange(290) for _ in range(rng.randrange(1, 120)))
        base = msgspec.structs.replace(rng.choice([GREEDY, SEEDED]), n=rng.choice([1, 1, 1, 3]))
        sampling = msgspec.structs.replace(base, max_tokens=rng.randrange(1, 60))
        request = Request(id=f"r{number}", prompt=TokenPrompt(token_ids=prompt), sampling=sampling)
        client.submit(request)
        if rng.random() < 0.5:
            time.sleep(rng.random() * 0.02)
        client.cancel(f"r{rng.randrange(number + 1)}")
    for number in range(200):
        client.cancel(f"r{number}")
    assert seen.wait(60), f"seed {seed}: {200 - sum(ended.values())} requests never ended"
    assert set(ended.values()) == {1}, f"seed {seed}: {ended.most_common(3)}"
    assert_idle(llm)
    assert llm.generate([5, 6, 7], GREEDY).outputs[0].finish_reason == "length"


def test_a_pool_that_is_too_small_preempts_and_changes_nothing(start):
    """16 blocks of 4 for eight sequences: all finish, with the tokens of a large pool."""
    prompts = [[(3 * n + place) % 290 for place in range(10 + n)] for n in range(8)]
    large = start("deterministic", engine__block_size=4)
    small = start("deterministic", engine__block_size=4, engine__num_blocks=16)
    for sampling in (GREEDY, SEEDED):
        wanted = [output.outputs[0].token_ids for output in large.generate(prompts, sampling)]
        got = small.generate(prompts, sampling)
        assert [output.outputs[0].token_ids for output in got] == wanted
    assert sum(output.usage.num_preemptions for output in got) > 0


def test_what_outgrows_the_whole_pool_ends_with_capacity(start):
    """A sequence that can't go on alone ends with its reason, and others are served."""
    llm = start(
        "cpu",
        engine__block_size=4,
        engine__num_blocks=8,
        budget=["context-length"],
    )
    long = msgspec.structs.replace(GREEDY, max_tokens=100)
    output = llm.generate([1, 2, 3, 4, 5], long)
    assert output.outputs[0].finish_reason == "capacity"
    assert len(output.outputs[0].token_ids) == 8 * 4 - 5 + 1
    assert llm.generate([1, 2, 3], GREEDY).outputs[0].finish_reason == "length"
