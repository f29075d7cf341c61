"""Vectors and exp of the CPU kernels: accuracy, special values, and no hidden fusing."""

from typing import Any

import numpy as np
import pytest

from enginebay.plugins.kernels.cpu_exp import exp_nonpositive, sigmoid
from enginebay.plugins.kernels.cpu_jit import Entry
from enginebay.plugins.kernels.cpu_lanes import fma, total
from enginebay.plugins.kernels.cpu_memory import fetch, floats, load, put


def _exp(x: int, out: int, count: int) -> None:
    for start in range(0, count, 16):
        put(floats(out), start, count, exp_nonpositive(fetch(floats(x), start, count)))


def _sigmoid(x: int, out: int, count: int) -> None:
    for start in range(0, count, 16):
        put(floats(out), start, count, sigmoid(fetch(floats(x), start, count)))


def _sums(x: int, y: int, z: int, out: int, fused: int) -> None:
    a, b, c = load(floats(x), 0), load(floats(y), 0), load(floats(z), 0)
    put(floats(out), 0, 16, fma(a, b, c) if fused else a * b + c)


def _total(x: int, out: int) -> None:
    floats(out)[0] = total(load(floats(x), 0))


EXP, SIGMOID, SUMS, TOTAL = (Entry(f, nogil=False) for f in (_exp, _sigmoid, _sums, _total))


def apply(entry: Entry, x: Any) -> Any:
    """One float32 array through a compiled loop."""
    x = np.ascontiguousarray(x, dtype=np.float32)
    out = np.full_like(x, 7.0)
    entry.call(x.ctypes.data, out.ctypes.data, x.size)
    return out


def test_exp_is_within_one_unit_in_the_last_place():
    """Over all that softmax can ask for, against float64."""
    x = np.concatenate([np.linspace(-87, 0, 50_000), np.linspace(0, 88, 5_000)]).astype("f4")
    right = np.exp(x.astype("f8"))
    error = np.abs(apply(EXP, x) - right) / np.spacing(right.astype("f4"))
    assert error.max() <= 1.0


def test_exp_has_its_special_values_right():
    """1 at 0, exactly; 0 far below; NaN stays NaN."""
    found = apply(EXP, [0.0, -0.0, -np.inf, -88.0, -1e30, np.nan])
    assert found[:5].tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert np.isnan(found[5])


def test_sigmoid_holds_far_out():
    """0 and 1 at the ends, NaN stays NaN, and no overflow between."""
    found = apply(SIGMOID, [-np.inf, -1e30, -100.0, 0.0, 100.0, np.inf, np.nan])
    assert np.abs(found[:6] - [0, 0, 0, 0.5, 1, 1]).max() < 1e-37
    assert np.isnan(found[6])


@pytest.mark.parametrize("count", [1, 3, 15, 16, 17, 31, 32, 47])
def test_a_value_has_the_same_bits_in_body_and_tail(count):
    """Whatever the length, and nothing is written past the end."""
    x = -np.random.default_rng(count).random(64).astype("f4") * 20
    whole = apply(EXP, x)
    out = np.full(64, 7.0, dtype="f4")
    EXP.call(x.ctypes.data, out.ctypes.data, count)
    assert out[:count].tobytes() == whole[:count].tobytes()
    assert (out[count:] == 7.0).all()


def test_only_what_is_written_as_fma_is_fused():
    """x * y + z rounds twice, fma once: the compiler turns neither into the other."""
    x, y, z = np.random.default_rng(1).standard_normal((3, 16)).astype("f4")
    out = np.zeros(16, dtype="f4")
    pointers = [array.ctypes.data for array in (x, y, z, out)]
    SUMS.call(*pointers, 0)
    assert out.tobytes() == (x * y + z).tobytes()
    SUMS.call(*pointers, 1)
    exact = x.astype("f8") * y.astype("f8") + z.astype("f8")
    assert out.tobytes() == exact.astype("f4").tobytes()
    assert out.tobytes() != (x * y + z).tobytes()


def test_a_sum_of_lanes_is_one_fixed_tree():
    """Lane i with i + 8, then i + 4, i + 2, i + 1."""
    x = np.random.default_rng(2).standard_normal(16).astype("f4")
    tree = x
    for step in (8, 4, 2, 1):
        tree = tree + np.roll(tree, -step)
    out = np.zeros(1, dtype="f4")
    TOTAL.call(x.ctypes.data, out.ctypes.data)
    assert out[0] == tree[0]
