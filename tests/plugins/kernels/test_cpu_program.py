"""Recorded steps give the bits of the steps they replace, or are not recorded."""

import numpy as np
import pytest
import torch

from enginebay.hookspecs.quant import PackedLinear
from enginebay.plugins.kernels.cpu_block import Block
from enginebay.plugins.kernels.cpu_jit import Task
from enginebay.plugins.kernels.cpu_linear import Products
from enginebay.plugins.kernels.cpu_memory import floats, longs
from enginebay.plugins.kernels.cpu_panels import pack_float, pack_int
from enginebay.plugins.kernels.cpu_pool import Pool
from enginebay.plugins.kernels.cpu_program import MOST_ROWS, Arena, Recorded
from enginebay.plugins.kernels.cpu_quantize import Quantizations
from enginebay.plugins.kernels.cpu_rows import RowOps

SIZE = 48


class Layers:
    """Two blocks of ops over ``hidden`` [T, 48]; no attention."""

    def __init__(self, threads=1):
        self.pool = Pool(threads)
        self.pool.warm_up()
        self.calls = 0
        self.rows, self.quantizations = RowOps(self.pool), Quantizations(self.pool)
        self.products = Products(self.pool)
        random = torch.Generator().manual_seed(0)
        self.weight = torch.rand(SIZE, generator=random)
        wide = torch.randint(-127, 128, (2 * SIZE, SIZE), dtype=torch.int8, generator=random)
        scales = torch.rand(2 * SIZE, generator=random) / 500
        self.up = pack_int(
            PackedLinear("up", "w8a8", SIZE, 2 * SIZE, {"weight": wide, "scales": scales})
        )
        narrow = torch.randn(SIZE, SIZE, generator=random) / 7
        self.down = pack_float(PackedLinear("down", "float", SIZE, SIZE, {"weight": narrow}))

    def body(self, hidden, cos_sin, attention):
        self.calls += 1
        for _ in range(2):
            x = self.quantizations.rms_norm_quantize(hidden, self.weight, 1e-5, None, 0)
            gated = self.rows.silu_and_mul(self.products.ints(x, self.up))
            self.products.floats(gated, self.down, hidden)


def hidden(rows, seed):
    return torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(seed))


def angles(rows):
    return torch.zeros(rows, 4)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_replay_has_the_bits_of_the_body(threads):
    """For any order of row counts, and always for what is in ``hidden`` now."""
    layers = Layers(threads)
    run = Recorded(layers.body, layers.pool)
    for seed, rows in enumerate((1, 3, 1, 8, 3, 3, 1, 64, 8)):
        right, found = hidden(rows, seed), hidden(rows, seed)
        layers.body(right, angles(rows), None)
        run(found, angles(rows), "an attention")
        assert torch.equal(found.view(torch.int32), right.view(torch.int32)), (seed, rows)
    assert layers.calls == 9 + 4  # each number of rows was recorded once
    assert not run.refused


def test_wide_steps_run_the_body():
    """Python does not matter to them."""
    layers = Layers()
    run = Recorded(layers.body, layers.pool)
    for _ in range(2):
        run(hidden(MOST_ROWS + 1, 0), angles(MOST_ROWS + 1), None)
    assert (layers.calls, run.programs) == (2, {})


@pytest.mark.parametrize("apart", ["hidden", "angles"])
def test_rows_that_lie_apart_are_not_replayed(apart):
    """A program copies memory as it lies; the body takes anything."""
    layers = Layers()
    run = Recorded(layers.body, layers.pool)
    run(hidden(3, 0), angles(3), None)
    wide = torch.zeros(3, 2 * SIZE)
    found = wide[:, ::2] if apart == "hidden" else hidden(3, 1)
    found.copy_(hidden(3, 1))
    given = torch.zeros(3, 8)[:, ::2] if apart == "angles" else angles(3)
    right = hidden(3, 1)
    layers.body(right, angles(3), None)
    if apart == "angles":
        run(found, given, None)
        assert torch.equal(found, right)
    else:  # which this plugin's ops refuse, as they would without a program
        with pytest.raises(ValueError, match="adjacent columns"):
            run(found, given, None)
    assert layers.calls == 3


def test_another_attention_is_recorded_anew():
    """Its blocks are others."""
    layers = Layers()
    run = Recorded(layers.body, layers.pool)
    for attention in ("one", "other", "one"):
        run(hidden(2, 0), angles(2), attention)
    assert layers.calls == 2


@pytest.mark.parametrize(
    ("compute", "name"),
    [
        (lambda x: x.add_(1), "add_"),
        (lambda x: x.copy_(x * 2), "mul"),
        (lambda x: x.index_select(0, torch.tensor([0])), "tensor"),
        (lambda x: x[torch.zeros(1, dtype=torch.long)], "zeros"),
        (lambda x: torch.empty(3), "empty"),
        (lambda x: x.t().contiguous(), "t"),
    ],
)
def test_what_torch_computes_is_never_lost(compute, name):
    """A body with an op of torch's own is run as it is, each time."""
    layers = Layers()

    def body(rows, cos_sin, attention):
        layers.body(rows, cos_sin, attention)
        compute(rows)

    run = Recorded(body, layers.pool)
    for seed in range(3):
        right, found = hidden(2, seed), hidden(2, seed)
        body(right, angles(2), None)
        run(found, angles(2), None)
        assert torch.equal(found, right)
    assert repr(name) in run.refused


def _add_word(arguments, item, slot):
    w = longs(arguments)
    floats(w[0])[item] += np.float32(w[1])


ADD_WORD = Task(_add_word)
"""Adds the block's second word to so many elements at the address in its first."""


def test_words_of_the_step_and_its_count_are_read_at_each_replay():
    """What a step decides is not frozen by the recording; nor is how much work it is."""
    layers = Layers(threads=2)
    step = Block(4, live=(1, 2), count=2)

    def body(rows, cos_sin, attention):
        step.words[0] = rows.data_ptr()
        layers.pool.run(ADD_WORD, step, int(step.words[2]), int(step.words[3]))

    run = Recorded(body, layers.pool)
    for added, count, work in ((5, 3, 0), (7, 1, 10**9), (2, 4, 10**9)):
        step.words[1:] = added, count, work
        x = torch.zeros(1, 6)
        run(x, angles(1), None)
        assert x[0].tolist() == [added] * count + [0] * (6 - count)
    assert len(run.programs) == 1


def test_a_job_without_its_block_is_not_recorded():
    """An address alone can't be copied."""
    layers = Layers()
    words = np.array([0, 3], dtype=np.int64)

    def body(rows, cos_sin, attention):
        words[0] = rows.data_ptr()
        layers.pool.run(ADD_WORD, int(words.ctypes.data), 2, 0)

    run = Recorded(body, layers.pool)
    for _ in range(2):
        x = torch.zeros(1, 6)
        run(x, angles(1), None)
        assert x[0].tolist() == [3, 3, 0, 0, 0, 0]
    assert "address" in run.refused


def test_memory_in_use_is_not_handed_out_again():
    """A view keeps its piece; without any, the piece comes back, for any number of rows."""
    arena = Arena()
    first = arena.empty((2, 8), torch.float32)
    view = first.view(4, 4)[1:]
    place = first.data_ptr()
    del first
    assert arena.empty((2, 8), torch.float32).data_ptr() != place
    del view
    assert arena.empty((5, 8), torch.float32).data_ptr() in {
        piece.ctypes.data for piece in arena.pieces
    }
    assert len(arena.pieces) == 2


def test_all_that_stays_is_told():
    """Pieces, programs and blocks, for the ledger."""
    layers = Layers()
    run = Recorded(layers.body, layers.pool)
    run(hidden(2, 0), angles(2), None)
    told = {id(each) for each in run.buffers()}
    assert told >= {id(piece) for piece in run.arena.pieces}
    assert told >= {id(program) for program in run.programs.values()}
