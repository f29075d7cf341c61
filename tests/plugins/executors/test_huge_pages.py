"""Huge pages: which memory is asked for, and that nothing depends on the answer."""

import torch

from enginebay.plugins.executors import huge_pages

SIZE = 1 << 21


def test_every_byte_of_every_tensor_is_covered_once():
    """Neighbours share a page; views count as their whole storage."""
    tensors = [torch.zeros(300_000), torch.zeros(5 * SIZE // 4 * 4, dtype=torch.uint8)]
    pages = huge_pages.covered([*tensors, tensors[1][7:9]], SIZE)
    assert len(set(pages)) == len(pages)
    assert all(page % SIZE == 0 for page in pages)
    for tensor in tensors:
        for address in (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes - 1):
            assert address // SIZE * SIZE in pages


def test_nothing_is_asked_for_tensors_without_memory():
    """Of the device ``meta``, or empty."""
    assert huge_pages.covered([torch.zeros(0), torch.zeros(9, device="meta")], SIZE) == ()


def test_contents_stay():
    """Whatever the system grants."""
    tensor = torch.arange(3_000_000)
    granted = huge_pages.advise([tensor], collapse=True)
    assert 0 <= granted <= len(huge_pages.covered([tensor], huge_pages.page_size() or SIZE))
    assert torch.equal(tensor, torch.arange(3_000_000))


def test_a_system_without_huge_pages_is_left_alone(monkeypatch, tmp_path):
    """No file that tells their size, nothing asked."""
    monkeypatch.setattr(huge_pages, "_SIZE", tmp_path / "missing")
    assert huge_pages.advise([torch.zeros(9)], collapse=True) == 0
