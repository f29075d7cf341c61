"""The reference KV store: blocks move whole, in one layout-independent order."""

import msgspec
import pytest
import torch

from enginebay.flow import BlockOp
from enginebay.hookspecs.kernel import KVSpec
from enginebay.plugins.kernels.reference_store import ReferenceStore

SPEC = KVSpec(
    num_layers=2, num_heads=4, num_kv_heads=2, head_dim=3, block_size=4, max_model_len=32
)  # fmt: skip


@pytest.fixture
def store():
    made = ReferenceStore(SPEC, 5, "cpu")
    made.data.copy_(torch.arange(made.data.numel(), dtype=torch.float32).view(made.data.shape))
    return made


def block(store, number):
    return store.data[:, :, number].clone()


def op(kind, source, target):
    return BlockOp(kind=kind, source=source, target=target)


def test_copies_happen_in_order(store):
    """A chain of copies moves the first block's bytes along."""
    first, fourth = block(store, 0), block(store, 4)
    store.copy([op("copy", 0, 1), op("copy", 1, 2)])
    assert torch.equal(block(store, 2), first)
    assert torch.equal(block(store, 4), fourth)


def test_saved_blocks_come_back(store):
    """A block survives on the host while its place is used by others."""
    saved = block(store, 3)
    store.save([op("save", 3, 11)])
    store.data[:, :, 3] = -1
    store.load([op("load", 11, 1)])
    assert torch.equal(block(store, 1), saved)
    assert (block(store, 3) == -1).all()


def test_every_byte_is_in_the_ledger(store):
    """Device pool and host slots are both told, at the size they were planned with."""
    assert store.bytes_per_block == 2 * 2 * 4 * 2 * 3 * 4
    (data,) = store.tensors()
    assert data.untyped_storage().nbytes() == 5 * store.bytes_per_block
    store.save([op("save", 3, 11), op("save", 2, 12), op("save", 1, 11)])
    total = sum(tensor.untyped_storage().nbytes() for tensor in store.tensors())
    assert total == 7 * store.bytes_per_block


def test_export_order_is_that_of_the_contract(store):
    """Layer, block, K then V, [position, head, dim], whatever the layout inside."""
    values = torch.frombuffer(bytearray(store.export((4, 1))), dtype=torch.float32)
    values = values.view(2, 2, 2, 4, 2, 3)
    keys, _ = store.layer(1)
    assert torch.equal(values[1, 0, 0].flatten(0, 0), keys.view(5, 4, 2, 3)[4])
    _, others = store.layer(0)
    assert torch.equal(values[0, 1, 1], others.view(5, 4, 2, 3)[1])


def test_import_reverses_export(store):
    """Blocks arrive in another store under other ids, bit for bit."""
    other = ReferenceStore(SPEC, 9, "cpu")
    other.import_((8, 0), store.export((2, 4)))
    assert torch.equal(block(other, 8), block(store, 2))
    assert torch.equal(block(other, 0), block(store, 4))
    assert (block(other, 1) == 0).all()
    other.import_((), store.export(()))


def test_import_refuses_data_of_another_size(store):
    """Bytes of another shape are refused before anything is written."""
    before = store.data.clone()
    with pytest.raises(ValueError, match="another shape, dtype or block count"):
        store.import_((1, 2), store.export((1,)))
    assert torch.equal(store.data, before)


def test_int8_vectors_come_back_within_half_a_step():
    """Zeros exactly, and what is no number as no number, in its own vector alone."""
    spec = msgspec.structs.replace(SPEC, cache_dtype="int8")
    made = ReferenceStore(spec, 5, "cpu")
    given = torch.randn((3, 2, 3), generator=torch.Generator().manual_seed(1)) * 9
    given[1] = 0
    given[2, 0, 1] = float("inf")
    slots = torch.tensor([7, 0, 19])
    made.put(1, slots, given, given * 2)
    keys, values = made.take(1, slots)
    step = given[0].abs().amax(-1, keepdim=True) / 127
    assert ((keys[0] - given[0]).abs() <= step / 2 * 1.0001).all()
    assert torch.equal(keys[1], given[1])
    assert keys[2, 0].isnan().all()
    assert keys[2, 1].isfinite().all()
    assert torch.equal(values[0], 2 * keys[0])
    assert made.bytes_per_block == 2 * 2 * 4 * 2 * (3 + 4)
    assert sum(part.nbytes for part in made.tensors()) == 5 * made.bytes_per_block
