"""The winner of a draw: the largest logit + Gumbel noise, found without most of the noise.

A bound tells from a word of noise, without a logarithm, that its token can't reach the
best score so far. Of 64 tokens the largest logit and the largest word together often
rule out all at once.
"""

from typing import Any, Final

import numpy as np

from .jit import entry, inner
from .lanes import CHUNK, largest_word
from .philox import HALF, gumbel_of, philox, word_of

LARGEST: Final = 22.9
"""No Gumbel of this resolution is larger: -log(-log(1 - 2**-33)) is 22.88."""
_COUNTERS: Final = CHUNK // 4
_WORD: Final = 4294967296.0


@inner
def goal(best: Any) -> Any:
    """A score that every token reaches that could win against ``best``, or draw with it.

    Scores and bounds are rounded, by less than what is taken off here.
    """
    return best - (1e-6 + abs(best) * 1e-15)


@inner
def least_word(distance: Any) -> Any:
    """No word of noise below it lifts a logit by ``distance`` or more (float64).

    It would take -log u <= exp(-distance). As 1 - u <= -log u, and as the exponential's
    series cut after an odd power never exceeds it, a larger 1 - u rules that out.
    """
    if distance <= 0.0:
        return 0.0
    x = 0.125 * distance
    series = 1.0 + x * (1.0 + x * (0.5 + x / 6.0))
    series *= series
    series *= series
    return _WORD - 0.5 - _WORD / (series * series)


@inner
def _fill(pairs: Any, first: Any, at: Any) -> None:
    """Noise of a chunk from counter ``first`` on into ``pairs`` (uint64 [32]): words 0
    and 1 of each counter, then words 2 and 3."""
    key0, key1, position, choice, stream = at
    for block in range(_COUNTERS):
        counter = first + np.uint64(block)
        lanes = philox(counter, position, choice, stream, key0, key1)
        pairs[block] = (lanes[1] << HALF) | lanes[0]
        pairs[block + _COUNTERS] = (lanes[3] << HALF) | lanes[2]


@inner
def _start(logits: Any, tops: Any, at: Any) -> Any:
    """A token with the largest logit, and its score."""
    chunk = 0
    for number in range(tops.shape[0]):
        chunk = number if tops[number] > tops[chunk] else chunk
    token_id = chunk * CHUNK
    while logits[token_id] != tops[chunk]:
        token_id += 1
    return token_id, np.float64(logits[token_id]) + gumbel_of(word_of(token_id, at))


@entry
def best_of_row(logits: Any, tops: Any, place: Any) -> Any:
    """Token id of the largest logit + Gumbel over a full row (float32 [V], none NaN).

    :param tops: the largest of each chunk
    :param place: five integers, see ``philox.place``
    """
    at = (np.uint64(place[0]), np.uint64(place[1]), np.uint64(place[2]), np.uint64(place[3]),
          np.uint64(place[4]))  # fmt: skip
    pairs = np.empty(2 * _COUNTERS, np.uint64)
    words = pairs.view(np.uint32)
    winner, best = _start(logits, tops, at)
    wanted = goal(best)
    for number in range(tops.shape[0]):
        distance = wanted - np.float64(tops[number])
        if distance > LARGEST:
            continue
        _fill(pairs, np.uint64(number) * np.uint64(_COUNTERS), at)
        if np.float64(largest_word(words, 0)) < least_word(distance):
            continue
        first = number * CHUNK
        for here in range(min(CHUNK, logits.shape[0] - first)):
            word = words[(here >> 2) * 2 + (here & 1) + (here & 2) * _COUNTERS]
            logit = np.float64(logits[first + here])
            if np.float64(word) >= least_word(wanted - logit):
                token_id, score = first + here, logit + gumbel_of(word)
                if score > best or (score == best and token_id < winner):
                    winner, best = token_id, score
                    wanted = goal(best)
    return winner


@entry
def best_among(logits: Any, ids: Any, place: Any) -> Any:
    """The same over candidates: logits (float32 [C]) of token ids (int64 [C])."""
    at = (np.uint64(place[0]), np.uint64(place[1]), np.uint64(place[2]), np.uint64(place[3]),
          np.uint64(place[4]))  # fmt: skip
    winner, best = ids[0], -np.inf
    wanted = best
    for number in range(logits.shape[0]):
        logit = np.float64(logits[number])
        if wanted - logit > LARGEST:
            continue
        token_id = ids[number]
        word = word_of(token_id, at)
        if np.float64(word) >= least_word(wanted - logit):
            score = logit + gumbel_of(word)
            if score > best or (score == best and token_id < winner):
                winner, best = token_id, score
                wanted = goal(best)
    return winner
