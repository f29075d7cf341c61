"""The warm-up plans fill a step, and never more than the limits allow."""

import pytest

from enginebay.hookspecs.model import Limits
from enginebay.plugins.executors.warm_up import decode_plan, prompt_plan


@pytest.mark.parametrize("num_blocks", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("max_sequences", [1, 5, 64])
@pytest.mark.parametrize("max_model_len", [4, 100, 4096])
@pytest.mark.parametrize("tokens", [1, 37, 512])
def test_within_every_limit(num_blocks, max_sequences, max_model_len, tokens):
    """Blocks inside the pool and of one sequence each, positions inside the context."""
    limits = Limits(
        max_model_len=max_model_len,
        max_step_tokens=512,
        max_sequences=max_sequences,
        block_size=16,
        num_blocks=num_blocks,
    )
    plan = prompt_plan(limits, tokens)
    tables = [block for span in plan.spans for block in span.table]
    assert sorted(tables) == list(range(len(tables)))
    assert len(tables) <= num_blocks
    assert 1 <= plan.num_tokens <= tokens
    assert len(plan.spans) <= max_sequences
    for span, started in zip(plan.spans, plan.started, strict=True):
        assert span.num_tokens == len(started.token_ids)
        assert span.num_tokens + 2 <= max(16 * len(span.table), max_model_len)
        assert span.num_tokens <= max(1, max_model_len - 2)
    last = decode_plan(plan, 1)
    assert all(span.start < 16 * len(owner.table)
               for span, owner in zip(last.spans, plan.spans, strict=True))  # fmt: skip


def test_a_roomy_engine_fills_a_step():
    """All its tokens, over all its seats, a row of logits each."""
    limits = Limits(
        max_model_len=8192, max_step_tokens=512, max_sequences=64, block_size=16, num_blocks=1456
    )
    plan = prompt_plan(limits, 512)
    assert (plan.num_tokens, len(plan.spans)) == (512, 64)
    assert all(span.logits_from == span.num_tokens - 1 for span in plan.spans)
    assert prompt_plan(limits, 64).num_tokens == 64
