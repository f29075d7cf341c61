"""Rows of a table: torch's own, and nothing outside of it is read."""

import pytest
import torch

from enginebay.plugins.kernels.cpu_lookup import embedding

TABLE = torch.randn(7, 19, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("ids", [[], [6], [0, 0, 3, 6, 1]])
def test_rows_are_those_of_torch(ids):
    """Any number of them, in any order; the table may be a view whose rows lie apart."""
    ids = torch.tensor(ids, dtype=torch.int64)
    assert torch.equal(embedding(ids, TABLE), torch.nn.functional.embedding(ids, TABLE))
    assert torch.equal(embedding(ids, TABLE[:, 3:8]), TABLE[:, 3:8][ids])


@pytest.mark.parametrize("wrong", [-1, 7, 2**40])
def test_an_id_that_is_no_row_is_told(wrong):
    """Compiled code would read whatever lies there."""
    with pytest.raises(IndexError, match=rf"ids\[1\] is {wrong}; the table has 7 rows"):
        embedding(torch.tensor([2, wrong]), TABLE)


@pytest.mark.parametrize(
    "ids", [torch.tensor([1], dtype=torch.int32), torch.tensor([[1]]), torch.arange(6)[::2]]
)
def test_ids_of_another_form_are_refused(ids):
    """Their memory would be read as something else."""
    with pytest.raises(ValueError, match=r"need torch\.int64 \[T\], contiguous"):
        embedding(ids, TABLE)


def test_a_table_of_another_type_is_refused():
    """Halves are no float32."""
    with pytest.raises(ValueError, match=r"needs torch\.float32"):
        embedding(torch.tensor([1]), TABLE.half())
