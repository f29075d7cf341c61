"""tanh on lanes: as float64 has it, everywhere."""

import numpy as np

from enginebay.plugins.kernels.cpu_jit import Entry
from enginebay.plugins.kernels.cpu_memory import floats, load, store
from enginebay.plugins.kernels.cpu_tanh import tanh


def _apply(source: int, target: int, count: int) -> None:
    for start in range(0, count, 16):
        store(floats(target), start, tanh(load(floats(source), start)))


APPLY = Entry(_apply, nogil=False)


def test_it_is_within_two_units_in_the_last_place():
    """Around 0, at the edge between the two formulas, far out, and what is no number."""
    near = np.linspace(-1.0, 1.0, 20000)
    tiny = np.array([0.0, 1e-30, -1e-30, 1e-8, 40.0, -40.0, 1e30, np.inf, -np.inf])
    x = np.concatenate((near, np.linspace(-12.0, 12.0, 20000), tiny, [np.nan] * 7))
    x = x.astype(np.float32)
    found = np.zeros_like(x)
    APPLY.call(x.ctypes.data, found.ctypes.data, len(x))
    right = np.tanh(x.astype(np.float64))
    assert np.isnan(found[-7:]).all()
    error = np.abs(found - right)[:-7] / np.spacing(np.abs(right[:-7]).astype(np.float32))
    assert error.max() <= 2.0
