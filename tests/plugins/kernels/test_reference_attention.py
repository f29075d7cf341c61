"""Reference attention: right, row-invariant, and blind to what it must not see."""

import math

import pytest
import torch

from enginebay.conformance.batches import Stretch, make_batch
from enginebay.hookspecs.kernel import KernelContext, KVSpec
from enginebay.plugins.kernels import reference

SHAPES = [(4, 2, 16), (3, 1, 24), (2, 2, 64), (9, 3, 64)]


class Inputs:
    """Queries, keys, values and rotations of one sequence, two layers."""

    def __init__(self, heads, kv_heads, dim, length, seed=0, rotary=None):
        noise = torch.Generator().manual_seed(seed)
        self.dims = (heads, kv_heads, dim)
        self.length = length
        self.q = torch.randn((2, length, heads, dim), generator=noise)
        self.k = torch.randn((2, length, kv_heads, dim), generator=noise)
        self.v = torch.randn((2, length, kv_heads, dim), generator=noise)
        angles = torch.rand((length, (rotary or dim) // 2), generator=noise) * 6
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)


def spec(inputs, block_size=16, **changes):
    heads, kv_heads, dim = inputs.dims
    return KVSpec(
        num_layers=2, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim,
        block_size=block_size, max_model_len=512, scale=dim**-0.5, **changes,
    )  # fmt: skip


def make(inputs, num_blocks=64, block_size=16, **changes):
    plugin = reference.enginebay_kernel(reference.Options(), KernelContext("cpu", 1))
    (offer,) = [offer for offer in plugin.offers() if offer.op == "attention"]
    attention = offer.call(spec(inputs, block_size, **changes))
    attention.allocate(num_blocks)
    return attention


def step(attention, parts, block_size=16):
    """One step over (inputs, start, end, table) of some sequences, layer 1 last."""
    stretches = [Stretch([0] * end, start, table) for _, start, end, table in parts]
    attention.prepare(make_batch(stretches, block_size))
    for layer in (0, 1):
        q, k, v = (
            torch.cat([getattr(inputs, name)[layer, start:end] for inputs, start, end, _ in parts])
            for name in "qkv"
        )
        cos_sin = torch.cat([inputs.cos_sin[start:end] for inputs, start, end, _ in parts])
        attention.write(layer, q, k, v, cos_sin)
        result = attention.attend(layer, q)
    return result


def whole(inputs, chunk=None, block_size=16, **changes):
    """All rows of one sequence, in chunks, over a table that is not in order."""
    table = range(-(-inputs.length // block_size), 0, -1)
    attention = make(inputs, len(table) + 1, block_size, **changes)
    chunk = chunk or inputs.length
    return torch.cat(
        [
            step(attention, [(inputs, start, min(start + chunk, inputs.length), table)], block_size)
            for start in range(0, inputs.length, chunk)
        ]
    )


def rotated(x, cos_sin):
    """Textbook rotation in float64: a complex multiplication of halves."""
    half = cos_sin.shape[1] // 2
    turn = torch.complex(cos_sin[:, :half].double(), cos_sin[:, half:].double())[:, None]
    pairs = torch.complex(x[..., :half].double(), x[..., half : 2 * half].double()) * turn
    return torch.cat((pairs.real, pairs.imag, x[..., 2 * half :].double()), dim=-1)


def textbook(inputs, layer=1, window=None):
    """Softmax attention in float64, the whole matrix at once."""
    heads, kv_heads, dim = inputs.dims
    q = rotated(inputs.q[layer], inputs.cos_sin)
    k = rotated(inputs.k[layer], inputs.cos_sin).repeat_interleave(heads // kv_heads, dim=1)
    v = inputs.v[layer].double().repeat_interleave(heads // kv_heads, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(dim)
    far = torch.arange(inputs.length)[:, None] - torch.arange(inputs.length)
    scores = scores.masked_fill((far < 0) | (far >= (window or inputs.length)), -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [None, 1, 20, 70])
def test_attention_is_right(shape, window):
    """Against the textbook in float64, with and without a sliding window."""
    inputs = Inputs(*shape, length=150)
    result = whole(inputs, sliding_window=window)
    assert torch.allclose(result.double(), textbook(inputs, window=window), atol=2e-6)


def test_partial_rotation_leaves_the_rest():
    """Only the first dimensions of a head turn."""
    inputs = Inputs(4, 2, 16, length=40, rotary=6)
    assert torch.allclose(whole(inputs).double(), textbook(inputs), atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [None, 20])
def test_chunks_and_block_sizes_do_not_matter(shape, window):
    """The same bits in one step, token by token, in odd chunks, in any block size."""
    inputs = Inputs(*shape, length=100)
    expected = whole(inputs, sliding_window=window)
    for chunk, block_size in ((1, 16), (7, 8), (16, 1), (64, 32), (65, 16), (None, 128)):
        result = whole(inputs, chunk, block_size, sliding_window=window)
        assert torch.equal(result, expected), (chunk, block_size)


def test_neighbours_and_order_do_not_matter():
    """A row's bits are those that it has alone, whoever stands before or after it."""
    sizes = (70, 3, 130, 17)
    many = [Inputs(4, 2, 16, length=size, seed=size) for size in sizes]
    alone = [whole(inputs) for inputs in many]
    for order in ((0, 1, 2, 3), (3, 1, 0, 2), (2, 0)):
        attention = make(many[0])
        parts = [
            (many[number], 0, sizes[number], range(1 + 12 * number, 13 + 12 * number))
            for number in order
        ]
        result = step(attention, parts)
        assert torch.equal(result, torch.cat([alone[number] for number in order]))


def test_a_mixed_step_of_decode_and_prefill():
    """One sequence continues by one token while another begins."""
    first, second = Inputs(4, 2, 16, 80, seed=1), Inputs(4, 2, 16, 33, seed=2)
    attention = make(first)
    step(attention, [(first, 0, 79, range(1, 7))])
    result = step(attention, [(second, 0, 33, range(10, 14)), (first, 79, 80, range(1, 7))])
    assert torch.equal(result[:33], whole(second))
    assert torch.equal(result[33:], whole(first)[79:])


def test_foreign_nan_in_a_reused_block_is_not_seen():
    """Case 66: what a broken request left behind past the context changes nothing."""
    inputs = Inputs(4, 2, 16, length=37)
    attention = make(inputs, num_blocks=8)
    attention.store.data.fill_(float("nan"))
    result = step(attention, [(inputs, 0, 37, (5, 2, 7))])
    assert torch.equal(result, whole(inputs))


def test_keys_are_read_back_from_the_cache():
    """A step sees what the store holds, not what it was handed."""
    inputs = Inputs(4, 2, 16, length=20)
    attention = make(inputs, num_blocks=4)
    attention.prepare(make_batch([Stretch([0] * 20, 0, (1, 2))], 16))
    q, k, v = (getattr(inputs, name)[0].clone() for name in "qkv")
    attention.write(0, q, k, v, inputs.cos_sin)
    before = attention.attend(0, q)
    attention.store.layer(0)[1][16] = 100.0
    after = attention.attend(0, q)
    assert not torch.equal(after, before)


def test_queries_are_rotated_in_place_as_promised():
    """``write`` turns q in place and leaves v alone."""
    inputs = Inputs(4, 2, 16, length=5)
    attention = make(inputs)
    attention.prepare(make_batch([Stretch([0] * 5, 0, (1,))], 16))
    q, k, v = (getattr(inputs, name)[0].clone() for name in "qkv")
    attention.write(0, q, k, v, inputs.cos_sin)
    assert torch.allclose(q.double(), rotated(inputs.q[0], inputs.cos_sin), atol=1e-6)
    assert torch.equal(v, inputs.v[0])


def test_use_before_allocate_and_prepare_is_told():
    """The two calls that must come first are named."""
    inputs = Inputs(4, 2, 16, length=5)
    plugin = reference.enginebay_kernel(reference.Options(), KernelContext("cpu", 1))
    attention = plugin.attention(spec(inputs))
    assert attention.bytes_per_block == 2 * 2 * 16 * 2 * 16 * 4
    with pytest.raises(RuntimeError, match="allocate"):
        _ = attention.store
    with pytest.raises(RuntimeError, match="prepare"):
        make(inputs).write(0, inputs.q[0], inputs.k[0], inputs.v[0], inputs.cos_sin)
