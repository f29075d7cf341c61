"""exp on sixteen lanes: the same bits in every lane, loop and tail.

exp(x) = 2^n exp(r) with n = round(x / ln 2), r = x - n ln 2 (ln 2 in two parts) and
|r| <= 0.3467. exp(r) = 1 + r + r^2 q(r), where q is the polynomial of degree 4 with the
least greatest relative error (3.1e-9, found by Lawson's iteration). All in float32
with fused multiply-adds; the result is within 1 ulp and exp(0) is exactly 1.
"""

from typing import Any

import numpy as np

from .cpu_jit import inlined
from .cpu_lanes import fma, power_of_two, splat, where_below

LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH = np.float32(-0.693145751953125)
LN2_LOW = np.float32(-1.428606765330187e-06)
ROUND = np.float32(12582912.0)
"""1.5 * 2^23: adding it leaves the rounded integer in the low bits."""
Q0 = np.float32(0.4999999403953552)
Q1 = np.float32(0.1666652113199234)
Q2 = np.float32(0.04166838899254799)
Q3 = np.float32(0.00836874544620514)
Q4 = np.float32(0.0013814540579915047)
LOWEST = np.float32(-87.0)
"""exp is 0 below: results stay normal numbers, which no CPU computes slowly."""
HIGHEST = np.float32(88.0)
ZERO = np.float32(0.0)
ONE = np.float32(1.0)


@inlined
def exp_nonpositive(x: Any) -> Any:
    """exp of lanes x <= 88 (softmax has x <= 0); 0 below -87; NaN stays NaN."""
    shifted = fma(x, splat(LOG2_E), splat(ROUND))
    count = shifted - splat(ROUND)
    rest = fma(count, splat(LN2_HIGH), x)
    rest = fma(count, splat(LN2_LOW), rest)
    q = fma(splat(Q4), rest, splat(Q3))
    q = fma(q, rest, splat(Q2))
    q = fma(q, rest, splat(Q1))
    q = fma(q, rest, splat(Q0))
    value = splat(ONE) + fma(rest * rest, q, rest)
    return where_below(x, splat(LOWEST), splat(ZERO), value * power_of_two(shifted))


@inlined
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)); at least 6e-39 for finite x, NaN stays NaN."""
    negative = splat(ZERO) - x
    negative = where_below(splat(HIGHEST), negative, splat(HIGHEST), negative)
    return splat(ONE) / (splat(ONE) + exp_nonpositive(negative))
