"""The cpu plugin's KV store: every way in which bytes move."""

import pytest
import torch

from enginebay.conformance.attention_world import make_spec
from enginebay.errors import IntegrityError
from enginebay.flow import BlockOp
from enginebay.plugins.kernels.cpu_store import CpuStore
from enginebay.plugins.kernels.reference_store import ReferenceStore


def filled(num_blocks=5, **sizes):
    """A store whose values are all different."""
    store = CpuStore(make_spec(**sizes), num_blocks)
    count = store.keys.numel()
    store.keys.view(-1).copy_(torch.arange(count))
    store.values.view(-1).copy_(torch.arange(count) + 0.5)
    return store


def op(kind, source, target):
    """One move."""
    return BlockOp(kind=kind, source=source, target=target)


def test_exported_bytes_are_in_the_contracts_order():
    """Layer, block, keys then values, [position, head, dim]."""
    store = filled()
    data = torch.frombuffer(bytearray(store.export((3, 1))), dtype=torch.float32)
    data = data.view(3, 2, 2, 16, 2, 16)
    layer, position, head, dim = 2, 7, 1, 9
    assert data[layer, 0, 0, position, head, dim] == store.keys[layer, 3, head, 0, dim, position]
    assert data[layer, 1, 1, position, head, dim] == store.values[layer, 1, head, position, dim]


@pytest.mark.parametrize("sizes", [{}, {"block_size": 4, "head_dim": 10, "num_kv_heads": 4}])
def test_import_reverses_export(sizes):
    """Into other blocks of another store, and the rest stays as it was."""
    source, target = filled(**sizes), CpuStore(make_spec(**sizes), 9)
    target.import_((8, 2), source.export((0, 4)))
    for there, here in ((8, 0), (2, 4)):
        assert torch.equal(target.keys[:, there], source.keys[:, here])
        assert torch.equal(target.values[:, there], source.values[:, here])
    assert target.export((0, 1, 3, 4, 5, 6, 7)).strip(b"\0") == b""


def test_bytes_travel_to_the_reference_store_and_back():
    """Two layouts, one order in between."""
    ours, theirs = filled(), ReferenceStore(make_spec(), 7, "cpu")
    theirs.import_((6, 0, 3), ours.export((1, 2, 4)))
    assert theirs.export((6, 0, 3)) == ours.export((1, 2, 4))
    back = CpuStore(make_spec(), 5)
    back.import_((1, 2, 4), theirs.export((6, 0, 3)))
    assert torch.equal(back.keys[:, 2], ours.keys[:, 2])
    assert torch.equal(back.values[:, 4], ours.values[:, 4])


def test_nothing_travels_as_nothing():
    """No blocks are no bytes, both ways."""
    store = filled()
    assert store.export(()) == b""
    store.import_((), b"")


def test_copies_happen_in_order():
    """The second one reads what the first one wrote."""
    store = filled()
    zero, three = store.export((0,)), store.export((3,))
    store.copy((op("copy", 0, 1), op("copy", 1, 2)))
    assert store.export((1,)) == store.export((2,)) == zero
    assert store.export((3,)) == three


def test_a_saved_block_comes_back_as_it_was():
    """Whatever has happened to the pool since, into any block, more than once."""
    store = filled()
    before = store.export((2,))
    store.save((op("save", 2, 7),))
    store.keys.zero_()
    store.values.zero_()
    store.load((op("load", 7, 0), op("load", 7, 4)))
    assert store.export((0,)) == store.export((4,)) == before
    assert not store.keys[:, 2].any()


def test_tensors_are_all_the_bytes():
    """The pool to the byte when sizes are multiples of 16, and what was saved."""
    store = filled()

    def held():
        return sum(tensor.untyped_storage().nbytes() for tensor in store.tensors())

    assert held() == 5 * store.bytes_per_block
    store.save((op("save", 2, 7), op("save", 3, 7)))
    assert held() == 6 * store.bytes_per_block


def test_odd_sizes_may_be_read_one_vector_past_the_end():
    """The storage is longer than its blocks by what a vector may overread."""
    store = filled(block_size=4, head_dim=10)
    for tensor in (store.keys, store.values):
        assert tensor.untyped_storage().nbytes() == 4 * (tensor.numel() + 16)


def test_moves_of_unknown_blocks_are_refused():
    """Negative ids would count from the end, in silence."""
    store = filled()
    with pytest.raises(IntegrityError, match=r"KV block -1 is outside the pool of 5"):
        store.copy((op("copy", -1, 2),))
    with pytest.raises(IntegrityError, match=r"KV block 5 is outside"):
        store.export((5,))
    with pytest.raises(IntegrityError, match=r"host slot 3 was never saved"):
        store.load((op("load", 3, 0),))


def test_bytes_of_another_size_are_refused():
    """The message has both sizes."""
    with pytest.raises(ValueError, match=r"4 bytes for 1 blocks, which take"):
        filled().import_((0,), b"1234")


def codes(num_blocks=5, **sizes):
    """An int8 store whose codes and scales are all over the place."""
    store = CpuStore(make_spec(cache_dtype="int8", **sizes), num_blocks)
    noise = torch.Generator().manual_seed(num_blocks)
    for plane in store.planes:
        if plane.data.dtype == torch.int8:
            plane.data.random_(-127, 128, generator=noise)
        else:
            plane.data.uniform_(generator=noise)
    return store


@pytest.mark.parametrize("sizes", [{}, {"block_size": 4, "head_dim": 10, "num_kv_heads": 4}])
def test_int8_blocks_travel_with_their_scales(sizes):
    """To the reference store and back, inside the pool, and out to the host and in again."""
    ours = codes(**sizes)
    before = ours.export((1, 2, 4))
    theirs = ReferenceStore(ours.spec, 7, "cpu")
    theirs.import_((6, 0, 3), before)
    assert theirs.export((6, 0, 3)) == before
    assert torch.equal(theirs.scales[2, 0, 6, :, 1], ours.planes[1].data[2, 1, 1])
    back = CpuStore(ours.spec, 5)
    back.import_((0, 2, 3), theirs.export((6, 0, 3)))
    back.copy((op("copy", 3, 4), op("copy", 0, 1)))
    back.save((op("save", 2, 7),))
    back.load((op("load", 7, 3),))
    assert back.export((1, 3, 4)) == before


def test_an_int8_block_takes_little_more_than_a_quarter():
    """A byte an element, and four for each token and KV head: what is there to the byte."""
    small, large = codes(), filled()
    assert small.bytes_per_block == 3 * 2 * 2 * 16 * (16 + 4)
    assert large.bytes_per_block == 3 * 2 * 2 * 16 * 64
    assert sum(t.untyped_storage().nbytes() for t in small.tensors()) == 5 * small.bytes_per_block
