"""The noise of a draw as a function of where it stands: Philox4x32-10, compiled.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The key is the
request's seed; the counter is (token id >> 2, absolute position, choice index, stream)
and the token takes word ``id & 3``. Words are kept in 64-bit integers, which is what the
32 x 32 -> 64 bit products need.
"""

import math
from typing import Any, Final

import numpy as np

from .jit import entry, inner

WORD: Final = 2**32
LOW: Final = np.uint64(0xFFFFFFFF)
HALF: Final = np.uint64(32)

_M0: Final = np.uint64(0xD2511F53)
_M1: Final = np.uint64(0xCD9E8D57)
_W0: Final = np.uint64(0x9E3779B9)
_W1: Final = np.uint64(0xBB67AE85)

Place = tuple[int, int, int, int, int]
"""Where a draw stands, all that its noise depends on besides the token id: two words of
key, position, choice, stream."""


def place(seed: int, position: int, choice: int, stream: int = 0) -> Place:
    """The noise of one row.

    :param seed: taken modulo 2**64, the others modulo 2**32
    :param stream: separates independent uses at one position; draws are stream 0
    """
    low, high = seed % WORD, (seed >> 32) % WORD
    return low, high, position % WORD, choice % WORD, stream % WORD


@inner
def philox(c0: Any, c1: Any, c2: Any, c3: Any, key0: Any, key1: Any) -> Any:
    """Four words of noise for a counter of four words and a key of two (all uint64).

    High halves are cleared where they would matter alone: to do it in every round would
    take as long as a product.
    """
    for _ in range(10):
        product0 = _M0 * (c0 & LOW)
        product1 = _M1 * (c2 & LOW)
        c0 = (product1 >> HALF) ^ c1 ^ key0
        c1 = product1
        c2 = (product0 >> HALF) ^ c3 ^ key1
        c3 = product0
        key0 = (key0 + _W0) & LOW
        key1 = (key1 + _W1) & LOW
    return c0 & LOW, c1 & LOW, c2 & LOW, c3 & LOW


@inner
def word_of(token_id: Any, at: Any) -> Any:
    """Noise of one token (uint64, below 2**32); ``at``: a place in uint64."""
    key0, key1, position, choice, stream = at
    lanes = philox(np.uint64(token_id >> 2), position, choice, stream, key0, key1)
    low = lanes[0] if token_id & 1 == 0 else lanes[1]
    high = lanes[2] if token_id & 1 == 0 else lanes[3]
    return low if token_id & 2 == 0 else high


@inner
def gumbel_of(word: Any) -> Any:
    """-log(-log u) for u = (word + 0.5) / 2**32, in float64: in float32 u reaches 1."""
    return -math.log(-math.log((np.float64(word) + 0.5) / 4294967296.0))


@entry
def noise(token_ids: Any, at: Any) -> Any:
    """Uniform and Gumbel noise (float64 [2, C]) of token ids: to look at, not to draw."""
    words = (np.uint64(at[0]), np.uint64(at[1]), np.uint64(at[2]), np.uint64(at[3]),
             np.uint64(at[4]))  # fmt: skip
    out = np.empty((2, token_ids.shape[0]), np.float64)
    for place_ in range(token_ids.shape[0]):
        word = word_of(token_ids[place_], words)
        out[0, place_] = (np.float64(word) + 0.5) / 4294967296.0
        out[1, place_] = gumbel_of(word)
    return out
