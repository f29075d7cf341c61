"""The attention checks catch what goes wrong in kernels: each planted fault is found."""

import pytest
import torch

from enginebay.conformance import attention_checks
from enginebay.conformance.attention_world import rotated
from enginebay.conformance.check import Broken, failures
from enginebay.hookspecs.kernel import Offer
from enginebay.plugins.kernels.reference_store import ReferenceStore


class PlainAttention:
    """The shortest attention over a paged cache that is right, with one fault to plant."""

    def __init__(self, spec, fault=""):
        self.spec, self.fault = spec, fault
        self.bytes_per_block = ReferenceStore.block_bytes(spec)

    def allocate(self, num_blocks):
        self.store = ReferenceStore(self.spec, num_blocks, "cpu")

    def prepare(self, batch):
        self.batch = batch

    def write(self, layer, q, k, v, cos_sin):
        if self.fault != "queries not rotated":
            q.copy_(rotated(q, cos_sin))
        if self.fault != "keys not rotated":
            k = rotated(k, cos_sin).float()
        self.store.put(layer, self.batch.slots, k, v)

    def attend(self, layer, q):
        if self.fault == "another layer":
            layer -= 1
        if self.fault == "the scale of the token before":
            self.store.scales[layer] = self.store.scales[layer].roll(1, dims=2)
        if self.fault == "keys under the scales of values":
            self.store.scales[layer, 0] = self.store.scales[layer, 1]
        if self.fault == "the scale is forgotten":
            self.store.scales.fill_(1.0)
        starts, size = self.batch.row_starts.tolist(), self.spec.block_size
        group = self.spec.num_heads // self.spec.num_kv_heads
        out = torch.zeros(q.shape)
        for number, context in enumerate(self.batch.contexts.tolist()):
            table = self.batch.tables[number].long()
            for row in range(starts[number], starts[number + 1]):
                places = self.seen(context - starts[number + 1] + row)
                slots = table[places // size] * size + places % size
                taken = self.store.take(layer, slots)
                k, v = (part.repeat_interleave(group, 1) for part in taken)
                if self.fault == "heads interleaved":
                    k, v = (part.repeat(1, group, 1) for part in taken)
                scores = torch.einsum("hd,phd->hp", q[row], k) * self.spec.scale
                if self.spec.soft_cap and self.fault != "the cap is forgotten":
                    scores = self.spec.soft_cap * torch.tanh(scores / self.spec.soft_cap)
                if self.fault == "weights in half precision":
                    scores = scores.half().float()
                out[row] = torch.einsum("hp,phd->hd", scores.softmax(-1), v)
        if self.fault == "bits depend on the step":
            out *= 1 + 2e-7 * (len(q) % 2)
        return out.flatten(1)

    def seen(self, position):
        """The positions that a row looks at."""
        window = self.spec.sliding_window or position + 1
        first, end = max(0, position + 1 - window), position + 1
        if self.fault == "one position too few":
            end = max(first + 1, end - 1)
        if self.fault == "one position too many" and position % 64 not in (0, 63):
            end += 1
        if self.fault == "the window is one too wide":
            first = max(0, first - 1) if self.spec.sliding_window else first
        places = torch.arange(first, end)
        if self.fault == "the last full tile is dropped" and len(places) > 64:
            places = torch.cat((places[:-64], places[-1:]))
        return places


class Plain:
    """A kernel plugin of that attention alone."""

    def offers(self):
        yield Offer(op="attention", name="plain", call=PlainAttention, row_invariant=False)


def test_a_right_attention_passes_every_check():
    """Otherwise the mutants below prove nothing."""
    assert failures(attention_checks.ATTENTION_CHECKS, Plain()) == {}


@pytest.mark.parametrize(
    "fault",
    [
        "queries not rotated",
        "keys not rotated",
        "another layer",
        "heads interleaved",
        "weights in half precision",
        "one position too few",
        "one position too many",
        "the window is one too wide",
        "the last full tile is dropped",
    ],
)
def test_attention_faults_are_found(fault):
    """Off by one, a dropped tile, the wrong layer, head or precision: each is an error."""
    with pytest.raises(Broken, match="kernel/attention: case"):
        attention_checks.check_attention(lambda spec: PlainAttention(spec, fault))


@pytest.mark.parametrize(
    "fault",
    [
        "the scale of the token before",
        "keys under the scales of values",
        "the scale is forgotten",
        "another layer",
    ],
)
def test_faults_of_an_int8_cache_are_found(fault):
    """By the check that is for int8, and not as a rounding error."""
    with pytest.raises(Broken, match="kernel/attention_int8: exact keys and values"):
        attention_checks.check_int8_cache(lambda spec: PlainAttention(spec, fault))


def test_a_cap_that_is_forgotten_is_found():
    """The check's cap is low enough to show."""
    make = lambda spec: PlainAttention(spec, "the cap is forgotten")  # noqa: E731
    with pytest.raises(Broken, match="kernel/attention: case"):
        attention_checks.check_attention(make, num_cases=2, soft_cap=attention_checks.SOFT_CAP)


@pytest.mark.parametrize("how", ["copy", "save", "load", "export"])
def test_scales_that_stay_behind_when_blocks_move_are_found(monkeypatch, how):
    """Codes without their scales mean nothing."""

    def only_codes(self, *given):
        parts, self.parts = self.parts, self.parts[:1]
        try:
            return right(self, *given)
        finally:
            self.parts = parts

    right = getattr(ReferenceStore, how)
    monkeypatch.setattr(ReferenceStore, how, only_codes)
    with pytest.raises((Broken, ValueError)):
        attention_checks.check_moved_blocks(PlainAttention, cache_dtype="int8")


def test_attention_whose_bits_depend_on_the_step_is_found():
    """A relative change of 2e-7 is within every tolerance, and not the same bits."""
    make = lambda spec: PlainAttention(spec, "bits depend on the step")  # noqa: E731
    attention_checks.check_attention(make, num_cases=2)
    with pytest.raises(Broken, match="kernel/attention_invariant: attention in chunks of"):
        attention_checks.check_attention_invariance(make)
