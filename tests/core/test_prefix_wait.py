"""A prefix that somebody is computing is waited for, not computed twice."""

import pytest

from enginebay.conformance.harness import Harness
from enginebay.conformance.mutants.caching import Caching
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of, require_all_well
from enginebay.plugins.schedulers.chunked import Chunked, Options


class Expecting(Caching):
    """A caching allocator that knows what running sequences will publish."""

    num_cached = num_evicted = 0

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.prompts = {}

    def match(self, sequence_id, identity, token_ids):
        self.prompts[sequence_id] = identity, token_ids
        return super().match(sequence_id, identity, token_ids)

    def free(self, sequence_id):
        self.prompts.pop(sequence_id, None)
        super().free(sequence_id)

    def pending(self, sequence_id, identity, token_ids):
        """Full blocks in common with a running sequence, and not published yet."""
        longest = 0
        for other, tokens in self.prompts.values():
            common = 0
            pairs = zip(token_ids[:-1], tokens, strict=False)
            while other == identity and next((a == b for a, b in pairs), False):
                common += 1
            longest = max(longest, common // self.block_size)
        known = 0
        while (
            known < longest
            and self._name(identity, tuple(token_ids[: (known + 1) * self.block_size]))
            in self._blocks_by_name
        ):
            known += 1
        return (longest - known) * self.block_size


def computed(tenants, **limits):
    """Prefill positions computed for requests with one prompt prefix, by tenant."""
    harness = Harness(
        lambda given: Chunked(Options(), given),
        limits_of(num_blocks=200, max_step_tokens=16, **limits),
        make_allocator=Expecting,
    )
    prefix = [1 + number % 90 for number in range(40)]
    for number, tenant in enumerate(tenants):
        request = request_of(
            f"r{number}", num_prompt=0, max_tokens=3, tenant=tenant, prompt=[*prefix, 50 + number]
        )
        harness.submit(request)
    total = []
    execute = harness.executor.execute

    def counted(plan):
        total.append(plan.num_tokens)
        return execute(plan)

    harness.executor.execute = counted
    harness.finish()
    require_all_well(harness, "core/prefix")
    return sum(total), harness


def test_fifty_at_once_compute_one_prefix():
    """All but the first wait until it is there, then compute their own last token."""
    total, harness = computed(["a"] * 20)
    assert total == 40 + 20 * (1 + 2)
    waits = [e["reason"] for e in harness.intake.timeline.of("r5") if e["what"] == "waiting"]
    assert waits[0] == "prefix"


def test_nobody_waits_for_a_stranger():
    """Another tenant's prefix is another prefix: it is neither found nor waited for."""
    total, _ = computed(["a", "b"])
    assert total == 2 * (40 + 1 + 2)


@pytest.mark.parametrize("when", [1, 2])
def test_who_waits_for_one_that_leaves_goes_on(when):
    """The one that computes is cancelled: the next computes instead."""
    harness = Harness(
        lambda given: Chunked(Options(), given),
        limits_of(num_blocks=200, max_step_tokens=16),
        make_allocator=Expecting,
    )
    prefix = [1 + number % 90 for number in range(40)]
    for number in range(5):
        harness.submit(
            request_of(f"r{number}", num_prompt=0, max_tokens=3, prompt=[*prefix, number + 3])
        )
    for _ in range(when):
        harness.turn()
    harness.cancel("r0")
    harness.finish()
    require_all_well(harness, "core/prefix")
