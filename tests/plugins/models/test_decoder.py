"""The decoder: which logits it computes, and which ops it asks for."""

import torch

from enginebay.conformance.batches import Stretch, make_batch
from enginebay.conformance.parity import teacher_forced

IDS = torch.randint(0, 300, (40,), generator=torch.Generator().manual_seed(2)).tolist()


def test_only_wanted_rows_have_logits(tiny):
    """Rows that want none get none, and the others are not changed by that."""
    subject = tiny().subject(row_invariant=True)
    every = teacher_forced(subject, IDS)
    attention = subject.attention(100, 16)
    stretches = [
        Stretch(IDS, 0, (3, 1, 2), logits_from=38),
        Stretch(IDS[:20], 0, (4, 5), logits_from=20),
        Stretch(IDS[:5], 0, (6,), logits_from=4),
    ]
    logits = subject.decoder.forward(make_batch(stretches, 16), attention)
    assert torch.equal(logits, every[[38, 39, 4]])
    assert logits.dtype == torch.float32


def test_a_step_without_logits_still_fills_the_cache(tiny):
    """A chunk whose logits nobody wants computes and writes everything else."""
    subject = tiny().subject(row_invariant=True)
    attention = subject.attention(40, 16)
    first = make_batch([Stretch(IDS[:30], 0, (1, 2), logits_from=30)], 16)
    none = subject.decoder.forward(first, attention)
    assert none.shape == (0, 300)
    assert none.dtype == torch.float32
    rest = subject.decoder.forward(make_batch([Stretch(IDS, 30, (1, 2, 3))], 16), attention)
    assert torch.equal(rest, teacher_forced(subject, IDS)[30:])


def test_ops_carry_their_sizes(tiny):
    """The kernel table was asked for fused projections of the right sizes."""
    subject = tiny("Qwen3ForCausalLM", head_dim=32).subject()
    asked = {(choice.signature.op, choice.signature.sizes) for choice in
             subject.table.choices.values()}  # fmt: skip
    assert ("linear", (("in", 64), ("out", 4 * 32 + 2 * 2 * 32))) in asked
    assert ("linear", (("in", 64), ("out", 256))) in asked
    assert ("logits", (("in", 64), ("out", 300))) in asked
    assert ("rms_norm", (("size", 32),)) in asked
    assert ("silu_and_mul", (("size", 128),)) in asked
    assert ("embedding", (("vocab", 300), ("hidden", 64))) in asked
