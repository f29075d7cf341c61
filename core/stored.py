"""Quantized weights as checkpoints store them, joined by rows."""

from collections.abc import Sequence

import torch

from .hookspecs.format import StoredForm, StoredWeight


def stacked(parts: Sequence[StoredWeight]) -> StoredWeight:
    """Weights of one form, one below the other.

    Static input scales become the greatest of them: one input feeds all parts.
    """
    if len(parts) == 1:
        return parts[0]
    offsets = [part.offsets for part in parts if part.offsets is not None]
    inputs = [part.input_scale for part in parts if part.input_scale is not None]
    return StoredWeight(
        form=parts[0].form,
        codes=torch.cat([part.codes for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        offsets=torch.cat(offsets) if offsets else None,
        input_scale=torch.stack(inputs).amax(dim=0) if inputs else None,
    )


def rehearsed(form: StoredForm, shapes: Sequence[tuple[int, ...]]) -> StoredWeight:
    """What ``stacked`` would give, on the device ``meta``: shapes without bytes."""
    rows, columns = sum(shape[0] for shape in shapes), shapes[0][1]
    groups = (rows, columns // form.group_size)
    return StoredWeight(
        form=form,
        codes=torch.empty(rows, columns, dtype=torch.int8, device="meta"),
        scales=torch.empty(groups, device="meta"),
        offsets=torch.empty(groups, device="meta") if form.offsets else None,
        input_scale=torch.empty(1, device="meta") if form.static else None,
    )
