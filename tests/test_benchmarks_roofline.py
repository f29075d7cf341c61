"""The roofline: limits that are positive, bytes that are really held, shares that follow."""

import ctypes
import json
import sys
from pathlib import Path

import pytest
import structlog
import torch

from enginebay.config import load_stack
from enginebay.conformance.attention_world import make_spec
from enginebay.conformance.tiny import write_tiny
from enginebay.hookspecs.quant import PackedLinear

sys.path.append(str(Path(__file__).parents[1]))  # the benchmarks are in no package

from benchmarks import roofline
from benchmarks.ceilings.chains import CHAINS
from benchmarks.ceilings.limits import FLOATS, Limits, cache_size, measure
from benchmarks.ceilings.loaded import load
from benchmarks.ceilings.steps import step_work
from benchmarks.ceilings.work import Work, attention_work, held, linear_work

RATES = ((1024, 40.0, 80.0), (4096, 20.0, 10.0))
LIMITS = Limits(1, RATES, float_macs=1000.0, int_macs=4000.0, int_means="")


def stack(model, **changes):
    """The reference kernels on a small pool."""
    changes |= {"engine.model": str(model), "engine.num_blocks": 8, "engine.threads": 1}
    return load_stack("reference", changes)


def test_bandwidth_is_the_faster_of_two_and_falls_between_sizes():
    """Below the smallest and above the largest working set the nearest one counts."""
    assert [LIMITS.bandwidth(size) for size in (1, 1024, 2048, 4096, 10**9)] == [80, 80, 50, 20, 20]


def test_the_better_of_two_measurements_counts():
    """Limit by limit: another process can only have slowed one down."""
    other = Limits(1, ((1024, 90.0, 1.0), (4096, 1.0, 30.0)), 1.0, 5000.0, "")
    best = LIMITS.best(other)
    assert best.rates == ((1024, 90.0, 80.0), (4096, 20.0, 30.0))
    assert (best.float_macs, best.int_macs) == (1000.0, 5000.0)


@pytest.mark.parametrize(
    ("work", "least"),
    [
        (Work(memory=400, resident=9999), (20.0, "memory")),
        (Work(memory=400, resident=9999, cached=4096), (204.8, "cache")),
        (Work(memory=1, resident=1, float_macs=1000, int_macs=8000), (3.0, "arithmetic")),
    ],
)
def test_the_longest_of_three_times_is_the_limit(work, least):
    """Memory by its working set, activations by theirs, products of both kinds together."""
    assert work.seconds(LIMITS) == least


@pytest.mark.parametrize("inputs", ["float", "int8"])
def test_a_layer_counts_what_it_holds(inputs):
    """Every tensor with its own width, and products at the rate of its inputs."""
    tensors = {"weight": torch.zeros(8, 4, dtype=torch.int8), "scales": torch.zeros(8)}
    packed = PackedLinear("a.b", "w8a8", 4, 8, tensors, torch.zeros(8), inputs)
    assert held(packed) == 32 + 32 + 32
    work = linear_work(packed, rows=3, resident=1000)
    assert (work.memory, work.resident) == (96, 1000)
    macs = (96, 0) if inputs == "float" else (0, 96)
    assert (work.float_macs, work.int_macs) == macs
    assert work.cached == 3 * (8 + 32 if inputs == "int8" else 16 + 32)


@pytest.mark.parametrize("window", [None, 3, 100])
@pytest.mark.parametrize(("each", "context"), [(1, 9), (4, 9), (9, 9)])
def test_attention_counts_what_its_rows_see(each, context, window):
    """As counted row by row; a position that several rows see is read once."""
    spec = make_spec(4, 2, 16, 4, window)
    write, attend = attention_work(spec, 256, 2, each, context)
    seen = [
        {p for p in range(row + 1) if window is None or p > row - window}
        for row in range(context - each, context)
    ]
    assert attend.float_macs == 2 * 4 * 16 * 2 * sum(map(len, seen))
    assert attend.memory == 2 * 256 * len(set.union(*seen))
    assert write.memory == 2 * 256 * each


def test_the_chains_compute_what_they_say():
    """value = value + factor * factor, so often: nothing was optimized away."""
    scratch = torch.full((16 * (CHAINS + 1),), 2.0)
    FLOATS.compile()
    words = (ctypes.c_int64 * 4)(0, scratch.data_ptr(), 5, 0)
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(FLOATS.address)(ctypes.addressof(words), 0, 0)
    assert scratch[:16].eq(2).all()
    assert scratch[16:].eq(2 + 5 * 4).all()


def test_a_measured_machine_has_limits():
    """Positive, at every working set, with two threads as well."""
    limits = measure(2, rounds=1, last_cache=1)
    assert all(read > 0 and copied > 0 for _, read, copied in limits.rates)
    assert min(limits.float_macs, limits.int_macs) > 0
    assert cache_size() > 0


def test_cache_sizes_are_read_as_the_system_writes_them(tmp_path):
    """The largest of them; a guess where there is none."""
    for number, size in enumerate(("48K", "2048K", "1M")):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(f"{size}\n")
    assert cache_size(tmp_path) == 2048 * 1024
    assert cache_size(tmp_path / "none") == 32 * 2**20


def test_every_op_of_a_model_is_told(tmp_path, capsys):
    """Each op that the table resolved, each number of rows, whole steps; shares follow."""
    model = write_tiny(tmp_path, "Qwen3ForCausalLM")
    arguments = ["--stack", "cpu", "--model", str(model), "--rows", "1,16"]
    arguments += ["--set", "engine.num_blocks=128"]
    roofline.main([*arguments, "--rounds", "1", "--last-cache", "1MiB", "--json"])
    structlog.get_logger("test").warning("a line that is no JSON")
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    told = {(each["op"], each["rows"]): each for each in run["ops"]}
    for op in ("linear qkv 64x128", "linear down 128x64", "logits lm_head 64x300", "rms_norm 16"):
        assert {(op, 1), (op, 16)} <= told.keys()
    for context in (64, 512):
        assert (f"attention attend, context {context}", 16) in told
    assert ("decode, 16 at context 64: forward", 16) in told
    weights = told["linear qkv 64x128", 1]["work"]["memory"]
    assert weights == 4 * 64 * 128
    assert all(0 < each["share"] == each["limit"] / each["seconds"] for each in run["ops"])


def test_a_step_counts_every_layer_and_the_head(tmp_path):
    """Weights once, keys and values of all layers, products of all rows."""
    loaded = load(stack(write_tiny(tmp_path)))
    work = step_work(loaded, sequences=2, context=10, rows=1)
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 64 * 256 + 128 * 64
    products = 2 * layer + 64 * 300
    token = 2 * 2 * 16 * 4
    assert work.memory == 4 * products + 2 * 2 * token * (10 + 1)
    assert work.float_macs == 2 * products + 2 * 2 * 2 * 64 * 10


def test_another_device_is_refused(tmp_path):
    """The limits are those of a CPU."""
    with pytest.raises(ValueError, match=r"engine\.device is 'meta'"):
        load(stack(write_tiny(tmp_path), **{"engine.device": "meta"}))
