"""The noise of a draw as a function of where it stands: Philox4x32-10, compiled.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The key is the
request's seed; the counter is (token id >> 2, absolute position, choice index, stream)
and the token takes word ``id & 3``. All words are kept in 64-bit integers, which is
what the 32 x 32 -> 64 bit products need.
"""

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

import numba
import numpy as np
import platformdirs

_Function = TypeVar("_Function", bound=Callable[..., Any])


def inner(function: _Function) -> _Function:
    """Compiled into the functions below that use it: a call would break vector lanes."""
    return cast("_Function", numba.njit(function, inline="always"))


def entry(function: _Function) -> _Function:
    """Compiled at the first call, or loaded from the platform's cache folder.

    Without a folder that can be written, each start compiles anew.
    """
    before = numba.config.CACHE_DIR
    folder = platformdirs.user_cache_path("enginebay", appauthor=False) / "numba" / "samplers"
    numba.config.CACHE_DIR = before or str(folder)
    try:
        return cast("_Function", numba.njit(function, cache=True))
    except RuntimeError:
        return cast("_Function", numba.njit(function))
    finally:
        numba.config.CACHE_DIR = before


WORD: Final = 2**32
LARGEST: Final = 22.9
"""No Gumbel of this resolution is larger: -log(-log(1 - 2**-33)) is 22.88."""

CHUNK: Final = 64
"""Counters worked on at once: enough for vector lanes, few enough to skip by."""

_M0: Final = np.uint64(0xD2511F53)
_M1: Final = np.uint64(0xCD9E8D57)
_W0: Final = np.uint64(0x9E3779B9)
_W1: Final = np.uint64(0xBB67AE85)
_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)


class Place(NamedTuple):
    """Where a draw stands: everything that its noise depends on besides the token id."""

    key0: np.uint64
    key1: np.uint64
    position: np.uint64
    choice: np.uint64
    stream: np.uint64


def place(seed: int, position: int, choice: int, stream: int = 0) -> Place:
    """The noise of one row.

    :param seed: taken modulo 2**64, the others modulo 2**32
    :param stream: separates independent uses at one position; draws are stream 0
    """
    low, high = seed % WORD, (seed >> 32) % WORD
    words = (low, high, position % WORD, choice % WORD, stream % WORD)
    return Place(*(np.uint64(word) for word in words))


@inner
def philox(c0: Any, c1: Any, c2: Any, c3: Any, key0: Any, key1: Any) -> Any:
    """Four words of noise for a counter of four words and a key of two (all uint64)."""
    for _ in range(10):
        product0 = _M0 * c0
        product1 = _M1 * c2
        c0 = (product1 >> _HALF) ^ c1 ^ key0
        c1 = product1 & _LOW
        c2 = (product0 >> _HALF) ^ c3 ^ key1
        c3 = product0 & _LOW
        key0 = (key0 + _W0) & _LOW
        key1 = (key1 + _W1) & _LOW
    return c0, c1, c2, c3


@inner
def _fill(words: Any, start: Any, at: Any) -> None:
    """Noise of the counters from ``start`` on into ``words`` [4, CHUNK]."""
    for block in range(words.shape[1]):
        counter = np.uint64(start + block)
        lanes = philox(counter, at.position, at.choice, at.stream, at.key0, at.key1)
        words[0, block], words[1, block], words[2, block], words[3, block] = lanes


@inner
def _word(token_id: Any, at: Any) -> Any:
    counter = np.uint64(token_id >> 2)
    lanes = philox(counter, at.position, at.choice, at.stream, at.key0, at.key1)
    low = lanes[0] if token_id & 1 == 0 else lanes[1]
    high = lanes[2] if token_id & 1 == 0 else lanes[3]
    return low if token_id & 2 == 0 else high


@inner
def _gumbel(word: Any) -> Any:
    """-log(-log u) for u = (word + 0.5) / 2**32, in float64: in float32 u reaches 1."""
    return -math.log(-math.log((np.float64(word) + 0.5) / 4294967296.0))


@inner
def _may_win(word: Any, distance: Any) -> Any:
    """Whether a token whose logit is ``distance`` below the best score could reach it.

    It does when -log u <= exp(-distance). As 1 - u <= -log u, and as the exponential's
    series cut after an odd power never exceeds it, (1 - u) * series(distance) > 1 rules
    that out: exact, and without a logarithm for nearly all tokens.
    """
    x = 0.25 * distance
    series = 1.0 + x * (1.0 + x * (0.5 + x / 6.0))
    series *= series
    missing = (4294967295.5 - np.float64(word)) / 4294967296.0
    return (distance <= 0.0) | (missing * series * series <= 1.000001)


@inner
def _any_near(logits: Any, best: Any) -> Any:
    """Whether the largest noise there is could lift any of these to the best score."""
    # Rounding keeps order, so no logit that reaches the exact floor is below this one.
    floor = np.float32(best - LARGEST)
    near = 0
    for logit in logits:
        near += logit >= floor
    return near > 0


@inner
def _any_may_win(words: Any, logits: Any, best: Any) -> Any:
    """Without branches, so that it runs in vector lanes."""
    found = 0
    for lane in range(4):
        lane_words = words[lane]
        for block in range((logits.shape[0] + 3 - lane) >> 2):
            logit = np.float64(logits[4 * block + lane])
            found += _may_win(lane_words[block], best - logit)
    return found > 0


@entry
def best_of_row(logits: Any, first: Any, at: Any) -> Any:
    """Token id of the largest logit + Gumbel over a full row (float32 [V]).

    :param first: any token with a large logit, to start from
    """
    winner = first
    best = np.float64(logits[first]) + _gumbel(_word(first, at))
    words = np.empty((4, CHUNK), np.uint64)
    for start in range(0, logits.shape[0], 4 * CHUNK):
        part = logits[start : start + 4 * CHUNK]
        if not _any_near(part, best):
            continue
        _fill(words, start >> 2, at)
        if not _any_may_win(words, part, best):
            continue
        for place_ in range(part.shape[0]):
            logit = np.float64(part[place_])
            word = words[place_ & 3, place_ >> 2]
            if _may_win(word, best - logit):
                token_id, score = start + place_, logit + _gumbel(word)
                if score > best or (score == best and token_id < winner):
                    winner, best = token_id, score
    return winner


@entry
def best_among(logits: Any, ids: Any, at: Any) -> Any:
    """The same over candidates: logits (float32 [C]) of token ids (int64 [C])."""
    winner, best = ids[0], -np.inf
    for place_ in range(logits.shape[0]):
        logit = np.float64(logits[place_])
        if best - logit > LARGEST:
            continue
        token_id = ids[place_]
        word = _word(token_id, at)
        if _may_win(word, best - logit):
            score = logit + _gumbel(word)
            if score > best or (score == best and token_id < winner):
                winner, best = token_id, score
    return winner


@entry
def noise(token_ids: Any, at: Any) -> Any:
    """Uniform and Gumbel noise (float64 [2, C]) of token ids: to look at, not to draw."""
    out = np.empty((2, token_ids.shape[0]), np.float64)
    for place_ in range(token_ids.shape[0]):
        word = _word(token_ids[place_], at)
        out[0, place_] = (np.float64(word) + 0.5) / 4294967296.0
        out[1, place_] = _gumbel(word)
    return out
