"""Promise P1 on a tiny model: the same tokens in every surrounding."""

import msgspec
import pytest

from enginebay.config import load_stack
from enginebay.conformance.invariance import (
    GREEDY,
    SEEDED,
    Run,
    check_invariance,
    check_threads,
    compare,
    crowd,
    observe,
)
from enginebay.flow import SamplingParams
from enginebay.llm import LLM
from enginebay.plugins.kernels import cpu_pool

PROMPT = [(11 * place + 5) % 290 for place in range(70)]


def stack_of(name, model, allocator):
    changes = {"engine.model": model, "engine.num_blocks": 512, "allocator": allocator}
    return load_stack(name, changes)


def test_the_deterministic_stack_gives_the_same_bits(tiny):
    """Alone, among neighbours, in any chunks and blocks, after a cancel, cached, preempted
    in either way: equal bits."""
    lines = check_invariance(stack_of("deterministic", tiny, "prefix-hash"), PROMPT)
    assert len(lines) == 28
    told = "\n".join(lines)
    assert all(f"preempted by {how}" in told for how in ("recompute", "swap"))
    assert all("within 0.0e+00" in line for line in lines), lines


def w8a8(model, **changes):
    """int8 weights and activations on the CPU kernels, rounded as they are."""
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    smoothing = {"options.quant.smoothquant.smoothing": False}
    fixed = {"engine.model": model, "engine.num_blocks": 512}
    return load_stack("cpu-w8a8", smoothing | fixed | changes)


def test_int8_stacks_give_the_same_bits(tiny):
    """Exact sums, and everything between them in fixed order: equal bits in every
    surrounding, 31 neighbours included."""
    lines = check_invariance(w8a8(tiny), PROMPT)
    assert len(lines) == 28
    assert all("within 0.0e+00" in line for line in lines), lines


def test_int8_keys_and_values_give_the_same_bits(tiny):
    """The cache's rounding looks at one row and head alone."""
    changes = {"engine__kv_cache_dtype": "int8", "engine__warm_up": False}
    with LLM(stack=w8a8(tiny, **changes)) as llm:
        alone = observe(llm, "alone", PROMPT, GREEDY)
    others = crowd(300)[:7]
    for step, more in ((7, {}), (512, {"neighbours": others}), (512, {"hot": True})):
        with LLM(stack=w8a8(tiny, engine__max_step_tokens=step, **changes)) as llm:
            compare(alone, observe(llm, f"{more}", PROMPT, GREEDY, **more), GREEDY, exact=True)


def test_one_thread_and_two_give_the_same_bits(tiny, monkeypatch):
    """However the pool shares work out: here it shares even the smallest."""
    monkeypatch.setattr(cpu_pool, "TINY", 0)
    lines = check_threads(w8a8(tiny), PROMPT)
    assert len(lines) == 8
    assert all("within 0.0e+00" in line for line in lines), lines


@pytest.mark.parametrize(("stack", "allocator"), [("cpu", "prefix-hash"), ("reference", "paged")])
def test_other_stacks_agree_within_their_tolerance(tiny, stack, allocator):
    """Logits within the tolerance; tokens equal but after a near tie."""
    assert len(check_invariance(stack_of(stack, tiny, allocator), PROMPT)) == 28


def test_a_cache_that_finds_nothing_is_caught(start):
    """A surrounding that is not what it says would prove nothing."""
    llm = start("deterministic", allocator="prefix-hash")
    llm.assembly.engine.allocator.publish = lambda *arguments: None
    with pytest.raises(AssertionError, match="0 positions were cached, not 64"):
        observe(llm, "after itself", PROMPT, GREEDY, hot=True)


def test_a_preemption_that_did_not_happen_is_caught(start):
    """The same for a preemption."""
    llm = start("deterministic", engine__swap_memory="1MiB")
    with pytest.raises(AssertionError, match="preempted 0 times"):
        observe(llm, "preempted", PROMPT, SamplingParams(max_tokens=2), push="swap")


def test_blocks_that_come_back_wrong_are_caught(start):
    """The comparison fails when swapping returns another block's bytes."""
    llm = start("deterministic", engine__swap_memory="1MiB")
    alone = observe(llm, "alone", PROMPT, GREEDY)
    store = llm.assembly.executor.runner.attention.store
    load = store.load

    def wrong(ops):
        load(tuple(msgspec.structs.replace(op, source=0) for op in ops))

    store.load = wrong
    with pytest.raises(AssertionError, match=r"swapped, position 7\d: logits differ"):
        compare(alone, observe(llm, "swapped", PROMPT, GREEDY, push="swap"), GREEDY, exact=True)


def test_a_stack_that_is_not_invariant_is_caught(start):
    """The comparison fails when one bit of one logit differs, and when a token does."""
    llm = start("deterministic")
    alone = observe(llm, "alone", PROMPT, GREEDY)
    again = observe(llm, "again", PROMPT, GREEDY)
    compare(alone, again, GREEDY, exact=True)
    position = min(again.logits) + 3
    again.logits[position] = again.logits[position].clone()
    again.logits[position][7] += 1e-6
    with pytest.raises(AssertionError, match=f"again, position {position}: logits differ"):
        compare(alone, again, GREEDY, exact=True)
    tokens = list(alone.tokens)
    tokens[5] = (tokens[5] + 1) % 300
    wrong = Run("wrong", tuple(tokens), alone.logits)
    with pytest.raises(AssertionError, match=r"wrong, position \d+: token .* margin"):
        compare(alone, wrong, GREEDY, exact=False)


def test_seeds_matter(start):
    """The seeded run is not the greedy one: the comparison has something to compare."""
    llm = start("deterministic")
    greedy = observe(llm, "greedy", PROMPT, GREEDY)
    seeded = observe(llm, "seeded", PROMPT, SEEDED)
    assert greedy.tokens != seeded.tokens


def test_n_choices_of_one_seed_differ_and_reproduce(start):
    """n = 3 with one seed: three different answers, the same three again."""
    llm = start("deterministic")
    three = msgspec.structs.replace(SEEDED, n=3)
    first = [choice.token_ids for choice in llm.generate(PROMPT, three).outputs]
    again = [choice.token_ids for choice in llm.generate(PROMPT, three).outputs]
    alone = llm.generate(PROMPT, SEEDED).outputs[0].token_ids
    assert len(set(first)) == 3
    assert first == again
    assert first[0] == alone
