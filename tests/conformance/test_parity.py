"""The parity check itself: what it measures, and what it lets pass."""

import math
from itertools import pairwise

import pytest
import torch

from enginebay.conformance.batches import Stretch, make_batch
from enginebay.conformance.parity import (
    TOLERANCES,
    Tolerance,
    check_parity,
    compare_logits,
    load_subject,
    teacher_forced,
)
from enginebay.conformance.tiny import write_tiny
from enginebay.hookspecs.format import FormatContext
from enginebay.hookspecs.kernel import KernelContext, Offer
from enginebay.hookspecs.model import ModelContext
from enginebay.hookspecs.source import Files
from enginebay.plugins.formats import safetensors
from enginebay.plugins.kernels.reference import ReferenceKernels
from enginebay.plugins.models import llama

LOOSE = Tolerance(max_difference=0.5, max_kl=1.0)
IDS = list(range(3, 60))


@pytest.fixture
def model(tmp_path):
    path = write_tiny(tmp_path / "model")
    reader = safetensors.enginebay_format(safetensors.Options(), FormatContext())
    checkpoint = reader.open(Files(path=str(path), origin="test", revision="1"))
    return checkpoint, llama.enginebay_model(llama.Options(), ModelContext())


def logits(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def test_equal_logits_have_no_difference():
    """A comparison with itself is all zeros and full agreement."""
    same = logits([1.0, 2.0, 0.0], [0.0, -1.0, 3.0])
    parity = compare_logits(same, same.clone())
    assert (parity.max_difference, parity.max_kl, parity.top1_agreement) == (0.0, 0.0, 1.0)
    assert parity.first_divergence is None
    check_parity(parity, Tolerance(0.0, 0.0))


def test_difference_kl_and_divergence_are_where_they_are():
    """Each figure on a case worked out by hand."""
    reference = logits([0.0, 0.0], [0.0, 1.0], [2.0, 1.9])
    subject = logits([0.0, 0.0], [0.25, 1.0], [1.8, 1.9])
    parity = compare_logits(subject, reference)
    assert parity.num_positions == 3
    assert parity.max_difference == pytest.approx(0.25)
    assert parity.worst_position == 1
    assert parity.top1_agreement == pytest.approx(2 / 3)
    assert parity.first_divergence == 2
    assert parity.divergence_margin == pytest.approx(0.1)
    p, q = 1 / (1 + math.e), 1 / (1 + math.exp(0.75))
    kl = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert parity.max_kl == pytest.approx(kl, rel=1e-5)
    assert parity.mean_kl < parity.max_kl


def test_a_constant_shift_is_a_difference_but_no_divergence():
    """Shifted logits give the same distribution; the difference is reported all the same."""
    reference = torch.randn((4, 9), generator=torch.Generator().manual_seed(1))
    parity = compare_logits(reference + 0.25, reference)
    assert parity.max_difference == pytest.approx(0.25)
    assert parity.max_kl < 1e-12


@pytest.mark.parametrize(
    ("tolerance", "told"),
    [
        (Tolerance(0.01, 10.0), "differ by 1.6 at position 0 of 1.*first differs at position 0"),
        (Tolerance(2.0, 1e-9), "KL 0.502"),
    ],
)
def test_each_bound_is_held(tolerance, told):
    """Difference and KL fail by name, with the figure."""
    parity = compare_logits(logits([1.4, 1.4]), logits([0.0, 3.0]))
    with pytest.raises(AssertionError, match=told):
        check_parity(parity, tolerance)


def test_a_close_call_may_go_either_way():
    """Another best token within the tolerance is rounding, not an error."""
    parity = compare_logits(logits([1.0, 1.1]), logits([1.1, 1.0]))
    assert parity.first_divergence == 0
    check_parity(parity, LOOSE)


def test_shapes_and_values_that_cannot_be_compared():
    """Another shape, or a logit that is no number, is told with its position."""
    with pytest.raises(AssertionError, match=r"shape \[1, 2\], the reference \[2, 2\]"):
        compare_logits(logits([0.0, 1.0]), logits([0.0, 1.0], [0.0, 1.0]))
    broken = logits([0.0, 1.0], [0.0, math.nan])
    with pytest.raises(AssertionError, match="position 1 are not finite"):
        compare_logits(broken, logits([0.0, 1.0], [0.0, 1.0]))


def test_tolerances_are_stated_for_every_dtype():
    """Wider dtypes have no larger tolerance than narrower ones."""
    order = [TOLERANCES[dtype] for dtype in ("float32", "float16", "bfloat16")]
    for tight, wide in pairwise(order):
        assert tight.max_difference < wide.max_difference
        assert tight.max_kl < wide.max_kl


def test_chunks_agree_on_row_invariant_kernels(model):
    """Prefill, decode and chunks of any size have the same bits there."""
    subject = load_subject(*model, row_invariant=True)
    expected = teacher_forced(subject, IDS)
    assert expected.shape == (len(IDS), 300)
    for chunk, block_size in ((1, 16), (10, 4), (len(IDS) + 5, 64)):
        result = teacher_forced(subject, IDS, chunk=chunk, block_size=block_size)
        assert torch.equal(result, expected)


class Slightly(ReferenceKernels):
    """Reference kernels whose activation is off by a factor."""

    factor = 1.001

    def offers(self):
        def off(gate_up, activate):
            return activate(gate_up) * self.factor

        return [
            offer
            if offer.op != "silu_and_mul"
            else Offer(offer.op, "off", lambda x, call=offer.call: off(x, call), True)
            for offer in super().offers()
        ]


def test_wrong_kernels_are_found(model):
    """Kernels that are off by a thousandth in one op fail against the reference."""
    expected = teacher_forced(load_subject(*model), IDS)
    subject = load_subject(*model, [("slightly", Slightly(KernelContext("cpu", 1)))])
    assert {choice.plugin for choice in subject.table.choices.values()} == {"slightly"}
    with pytest.raises(AssertionError, match="differ by"):
        check_parity(compare_logits(teacher_forced(subject, IDS), expected), TOLERANCES["float32"])


def test_batches_by_hand_lay_out_rows_tables_and_slots():
    """Positions, slots and logit rows of two sequences of one step."""
    batch = make_batch(
        [Stretch([5, 6, 7, 8, 9], 3, (4, 2)), Stretch([1, 2], 0, (3,), logits_from=1)], 4
    )
    assert batch.token_ids.tolist() == [8, 9, 1, 2]
    assert batch.positions.tolist() == [3, 4, 0, 1]
    assert batch.row_starts.tolist() == [0, 2, 4]
    assert batch.contexts.tolist() == [5, 2]
    assert batch.tables.tolist() == [[4, 2], [3, 0]]
    assert batch.slots.tolist() == [19, 8, 12, 13]
    assert batch.logit_rows.tolist() == [0, 1, 3]
    assert (batch.num_tokens, batch.num_sequences, batch.block_size) == (4, 2, 4)
