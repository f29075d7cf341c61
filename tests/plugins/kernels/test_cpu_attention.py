"""Attention of the cpu plugin: threads, views, windows, and what it refuses."""

import dataclasses

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enginebay.batch import Batch
from enginebay.conformance.attention_checks import ATTENTION, check_attention_invariance
from enginebay.conformance.attention_world import (
    LAYER,
    AttentionWorld,
    expected,
    in_chunks,
    make_prompt,
    make_spec,
)
from enginebay.conformance.batches import Stretch, make_batch
from enginebay.errors import IntegrityError, PluginError
from enginebay.plugins.kernels import cpu_pool
from enginebay.plugins.kernels.cpu_attention import PIECE_HEADS, CpuAttention
from enginebay.plugins.kernels.cpu_pool import Pool


def make(spec, threads=1):
    """What the plugin offers for ``attention``."""
    return CpuAttention(spec, Pool(threads))


def together(make_attention, spec, prompts, size=1000):
    """Every prompt in the same steps, ``size`` rows a step."""
    steps = in_chunks(prompts, size, together=True)
    return AttentionWorld(make_attention, spec, prompts).run(steps)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 7),
    dims=st.integers(1, 40),
    block_size=st.integers(1, 70),
    window=st.none() | st.integers(1, 90),
    lengths=st.lists(st.integers(1, 140), min_size=1, max_size=3),
    size=st.integers(1, 140),
    seed=st.integers(0, 2**20),
)
def test_any_shape_is_right(kv_heads, group, dims, block_size, window, lengths, size, seed):
    """Odd head dims, block sizes and windows too, against float64."""
    spec = make_spec(kv_heads * group, kv_heads, dims, block_size, window)
    prompts = [make_prompt(spec, n, dims // 2 * 2, seed + n) for n in lengths]
    for prompt, found in zip(prompts, together(make, spec, prompts, size), strict=True):
        assert (found - expected(spec, prompt)).abs().max() < ATTENTION


@pytest.mark.parametrize("window", [None, 40])
def test_bits_do_not_depend_on_surroundings_on_two_threads(monkeypatch, window):
    """The invariance check with every job split over two threads."""
    monkeypatch.setattr(cpu_pool, "SHORT", 0)
    check_attention_invariance(lambda spec: make(spec, threads=2), sliding_window=window)


def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch):
    """One, two and three threads give the same."""
    spec = make_spec(6, 2, 32)
    prompts = [make_prompt(spec, length, 32, length) for length in (300, 5, 129)]
    one = together(make, spec, prompts)
    monkeypatch.setattr(cpu_pool, "SHORT", 0)
    for threads in (2, 3):
        many = together(lambda spec, n=threads: make(spec, n), spec, prompts)
        assert all(torch.equal(a, b) for a, b in zip(one, many, strict=True))


@pytest.mark.parametrize("cache_dtype", ["", "int8"])
@pytest.mark.parametrize("window", [None, 700])
def test_long_contexts_in_parts_have_the_same_bits(monkeypatch, window, cache_dtype):
    """Whoever computes which range, and whatever the chunk, block size and neighbours."""
    monkeypatch.setattr(cpu_pool, "SHORT", 0)
    monkeypatch.setattr(cpu_pool, "TINY", 0)
    specs = [make_spec(6, 2, 24, size, window, cache_dtype=cache_dtype) for size in (16, 24)]
    prompts = [make_prompt(specs[0], length, 24, length) for length in (1300, 40, 600)]
    one = together(make, specs[0], prompts)
    if not cache_dtype:
        assert (one[0] - expected(specs[0], prompts[0])).abs().max() < ATTENTION
    for threads, size, spec in ((2, 1000, specs[1]), (3, 90, specs[0]), (2, 333, specs[1])):
        many = together(lambda spec, n=threads: make(spec, n), spec, prompts, size)
        assert all(torch.equal(a, b) for a, b in zip(one, many, strict=True))


def test_a_decode_of_a_long_context_is_shared_out():
    """Three ranges for each of two KV heads; and one thread does it in one piece."""
    spec = make_spec(6, 2, 16)
    for threads, pieces in ((2, 3), (1, 1)):
        attention = make(spec, threads)
        attention.allocate(90)
        attention.prepare(make_batch([Stretch([0] * 1300, 1299, list(range(82)))], 16))
        assert attention._num_pieces == pieces


def test_a_cap_bends_scores_of_any_size():
    """Scores far beyond the cap too, where tanh is 1."""
    for cap, scale in ((0.5, 1.0), (50.0, 1.0), (5.0, 100.0)):
        spec = make_spec(4, 2, 16, soft_cap=cap)
        spec = type(spec)(**{**fields_of(spec), "scale": scale})
        prompts = [make_prompt(spec, 130, 16, 1)]
        found = together(make, spec, prompts)[0]
        assert (found - expected(spec, prompts[0])).abs().max() < 5 * ATTENTION


@pytest.mark.parametrize("rotary", [0, 6, 16])
def test_partial_rotation_lets_the_other_dims_through(rotary):
    """Also no rotation at all, for models with other positions."""
    spec = make_spec()
    prompts = [make_prompt(spec, 70, rotary, 1)]
    found = together(make, spec, prompts)[0]
    assert (found - expected(spec, prompts[0])).abs().max() < ATTENTION


def test_one_kv_head_serves_more_query_heads_than_a_piece_has_rows():
    """Multi-query attention with 71 heads, as Falcon has."""
    spec = make_spec(71, 1, 16)
    assert spec.num_heads > PIECE_HEADS
    prompts = [make_prompt(spec, 70, 16, 1)]
    found = together(make, spec, prompts)[0]
    assert (found - expected(spec, prompts[0])).abs().max() < ATTENTION


def test_many_sequences_and_a_long_one_fit_in_a_step():
    """The list of pieces grows with the step."""
    spec = make_spec(16, 1, 16)
    prompts = [make_prompt(spec, length, 16, length) for length in [400] + [3] * 90]
    found = together(make, spec, prompts)
    for prompt, output in zip(prompts, found, strict=True):
        assert (output - expected(spec, prompt)).abs().max() < ATTENTION


def one_step(spec, rows=20, num_blocks=4):
    """An attention kernel prepared for one prompt of ``rows`` rows; and the batch."""
    attention = make(spec)
    attention.allocate(num_blocks)
    batch = make_batch([Stretch([0] * rows, 0, [2, 0])], spec.block_size)
    attention.prepare(batch)
    return attention, batch


def test_queries_keys_and_values_may_be_views_of_one_projection():
    """A fused projection needs no copies; the queries are turned where they lie."""
    spec = make_spec(4, 2, 16)
    prompt = make_prompt(spec, 20, 16, 3)
    fused = torch.cat((prompt.q.flatten(1), prompt.k.flatten(1), prompt.v.flatten(1)), dim=1)
    q, k, v = (
        part.unflatten(1, (-1, 16)) for part in torch.split(fused, [4 * 16, 2 * 16, 2 * 16], dim=1)
    )
    assert not q.is_contiguous()
    attention, _ = one_step(spec)
    attention.write(LAYER, q, k, v, prompt.cos_sin)
    apart = together(make, spec, [prompt])[0]
    assert torch.equal(attention.attend(LAYER, q), apart)


def test_an_output_is_never_overwritten_by_the_next():
    """Callers may keep what they got."""
    spec = make_spec(4, 2, 16)
    prompt = make_prompt(spec, 20, 16, 3)
    attention, _ = one_step(spec)
    attention.write(LAYER, prompt.q, prompt.k, prompt.v, prompt.cos_sin)
    first = attention.attend(LAYER, prompt.q)
    kept = first.clone()
    attention.attend(LAYER, prompt.q * 2)
    assert torch.equal(first, kept)


def test_a_row_that_is_not_a_number_spoils_no_other():
    """NaN and infinity stay in their sequence, from their position on."""
    spec = make_spec()
    prompts = [make_prompt(spec, 90, 16, seed) for seed in (1, 2, 3)]
    clean = together(make, spec, prompts)
    for value, kind in ((float("nan"), "k"), (float("inf"), "v"), (float("nan"), "q")):
        bad = dataclasses.replace(prompts[1], **{kind: getattr(prompts[1], kind).clone()})
        getattr(bad, kind)[50] = value
        dirty = together(make, spec, [prompts[0], bad, prompts[2]])
        assert torch.equal(dirty[0], clean[0])
        assert torch.equal(dirty[2], clean[2])
        assert torch.equal(dirty[1][:50], clean[1][:50])
        assert not dirty[1][50].isfinite().all()


def changed(batch, **fields):
    """The batch with some tensors replaced."""
    return dataclasses.replace(batch, **fields)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda b: changed(b, tables=b.tables + 3),
        lambda b: changed(b, tables=b.tables - 1),
        lambda b: changed(b, slots=b.slots + 1),
        lambda b: changed(b, contexts=b.contexts + 40),
        lambda b: changed(b, contexts=b.contexts - 1),
        lambda b: changed(b, tables=b.tables[:, :1]),
        lambda b: changed(b, block_size=8),
    ],
)
def test_a_batch_that_would_read_foreign_memory_is_refused(spoil):
    """Compiled code follows block ids blindly, so they are checked once a step."""
    attention, batch = one_step(make_spec())
    broken: Batch = spoil(batch)
    with pytest.raises(IntegrityError, match=r"sequence 0 of the batch|batch\.block_size is 8"):
        attention.prepare(broken)


def test_a_batch_that_comes_again_is_checked_again():
    """A step that decodes lies where the last one did: its numbers are read anew."""
    attention, batch = one_step(make_spec(), rows=17)
    batch.tables[0, 0] = 3
    with pytest.raises(IntegrityError, match=r"sequence 0 of the batch"):
        attention.prepare(batch)  # the slots are still those of block 2
    batch.slots[:16] += 16
    attention.prepare(batch)


@pytest.mark.parametrize("block_id", [-1, 4, 2**30])
def test_a_block_of_earlier_positions_must_be_in_the_pool(block_id):
    """A step that only reads a block is refused like one that writes it."""
    attention = make(make_spec())
    attention.allocate(4)
    with pytest.raises(IntegrityError, match=r"sequence 0 of the batch"):
        attention.prepare(make_batch([Stretch([0] * 30, 29, [block_id, 1])], 16))


def test_tensors_of_another_shape_are_refused():
    """The message names the tensor, what it is and what is needed."""
    spec = make_spec()
    attention, _ = one_step(spec)
    good = make_prompt(spec, 20, 16, 1)
    with pytest.raises(ValueError, match=r"q is torch.float32 \[19, 4, 16\].*\[20, 4, 16\]"):
        attention.attend(0, good.q[:19])
    with pytest.raises(ValueError, match=r"k is torch.float64"):
        attention.write(0, good.q, good.k.double(), good.v, good.cos_sin)
    apart = good.v.transpose(0, 1).contiguous().transpose(0, 1)
    with pytest.raises(ValueError, match=r"v is .* strides \[16, 320, 1\]"):
        attention.write(0, good.q, good.k, apart, good.cos_sin)
    with pytest.raises(ValueError, match=r"cos_sin has 18 columns"):
        attention.write(0, good.q, good.k, good.v, torch.zeros(20, 18))
    with pytest.raises(ValueError, match=r"cos_sin is torch.float32 \[3, 16\]"):
        attention.write(0, good.q, good.k, good.v, good.cos_sin[:3])
    with pytest.raises(IndexError, match=r"layer is 3, the store has 3"):
        attention.attend(3, good.q)


def test_a_spec_it_cannot_hold_is_refused_at_the_start():
    """Other dtypes, and heads that do not share KV heads evenly."""
    with pytest.raises(PluginError, match=r"dtype = 'float16'.* in float32 only"):
        make(type(make_spec())(**{**fields_of(make_spec()), "dtype": "float16"}))
    with pytest.raises(PluginError, match=r"5 query heads do not divide by 2 KV heads"):
        make(make_spec(num_heads=5))


def fields_of(spec):
    """The fields of a spec."""
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


def test_there_is_no_store_before_allocate():
    """The size of a block is known, the blocks are not there."""
    attention = make(make_spec())
    assert attention.bytes_per_block == 3 * 2 * 2 * 16 * 16 * 4
    with pytest.raises(RuntimeError, match=r"call allocate\(num_blocks\) first"):
        _ = attention.store
