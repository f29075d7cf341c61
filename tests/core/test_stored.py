"""Quantized weights joined by rows: nothing is rounded, nothing is taken from the first."""

import pytest
import torch

from enginebay.hookspecs.format import StoredForm, StoredWeight
from enginebay.stored import rehearsed, stacked

ROWS = (6, 2, 4)


def weight(rows, number, *, offsets=False, static=False, columns=32, group=16):
    """A weight whose codes, scales, offsets and input scale tell it from the others."""
    noise = torch.Generator().manual_seed(number)
    groups = columns // group
    inputs = "int8" if static else "float"
    form = StoredForm(bits=8, group_size=group, offsets=offsets, inputs=inputs, static=static)
    codes = torch.randint(-128, 128, (rows, columns), generator=noise).to(torch.int8)
    scales = torch.rand(rows, groups, generator=noise) + number
    minimums = torch.randn(rows, groups, generator=noise) if offsets else None
    scale = torch.tensor([[0.25, 4.0, 0.5][number]]) if static else None
    return StoredWeight(form, codes, scales, minimums, scale)


@pytest.mark.parametrize("offsets", [False, True])
def test_case_72_parts_keep_their_own_scales(offsets):
    """Case 72: a fused layer's values are those of its parts, one below the other."""
    parts = [weight(rows, number, offsets=offsets) for number, rows in enumerate(ROWS)]
    joined = stacked(parts)
    assert joined.form == parts[0].form
    assert (joined.codes.dtype, joined.codes.shape) == (torch.int8, (12, 32))
    values = torch.cat([part.dequantized() for part in parts])
    assert torch.equal(joined.dequantized(), values)
    assert (joined.offsets is None) is not offsets


def test_case_72_one_input_feeds_all_parts():
    """Case 72: of different static scales the greatest holds every part's inputs."""
    joined = stacked([weight(rows, number, static=True) for number, rows in enumerate(ROWS)])
    assert torch.equal(joined.input_scale, torch.tensor([4.0]))


def test_a_single_part_is_itself():
    """It is not copied."""
    part = weight(4, 0)
    assert stacked([part]) is part


@pytest.mark.parametrize(("offsets", "static"), [(False, True), (True, False)])
def test_a_rehearsal_has_the_shapes_of_the_joined_weight(offsets, static):
    """The memory plan counts what the load will keep, tensor by tensor."""
    parts = [weight(rows, n, offsets=offsets, static=static) for n, rows in enumerate(ROWS)]
    joined = stacked(parts)
    dry = rehearsed(joined.form, [part.codes.shape for part in parts])
    for name in ("codes", "scales", "offsets", "input_scale"):
        real, planned = getattr(joined, name), getattr(dry, name)
        assert (real is None) is (planned is None), name
        if real is not None:
            assert (planned.shape, planned.dtype) == (real.shape, real.dtype), name
            assert planned.device.type == "meta"


def test_dequantizing_multiplies_then_adds():
    """Each value is its code, times its group's scale, plus its group's offset."""
    part = weight(3, 2, offsets=True)
    for row, column in ((0, 0), (1, 15), (1, 16), (2, 31)):
        group = column // 16
        value = part.codes[row, column].float() * part.scales[row, group]
        assert part.dequantized()[row, column] == value + part.offsets[row, group]
    before = part.codes.clone()
    part.dequantized().zero_()
    assert torch.equal(part.codes, before)
