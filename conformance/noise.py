"""The noise of a draw, written a second time, plainly: the reference and its vectors.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
``noise_vectors.json`` holds the known answers of the Random123 distribution, and golden
vectors of how this project uses them: whoever draws differently gives other texts for
the same seed.
"""

import json
from importlib.resources import files
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_LOW: Final = 2**32 - 1
_ROUNDS: Final = 10


class Place(NamedTuple):
    """What the noise of one row depends on."""

    seed: int
    """int64; the key is the seed modulo 2**64."""
    position: int
    """Absolute position of the token being drawn."""
    choice: int = 0
    stream: int = 0


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Words, ...]:
    """Four words for a counter of four words, any of them an array, and a key of two."""
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(_ROUNDS):
        left, right = c0 * np.uint64(_MULTIPLIERS[0]), c2 * np.uint64(_MULTIPLIERS[1])
        c0 = (right >> np.uint64(32)) ^ c1 ^ np.uint64(k0)
        c2 = (left >> np.uint64(32)) ^ c3 ^ np.uint64(k1)
        c1, c3 = right & np.uint64(_LOW), left & np.uint64(_LOW)
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def words(token_ids: npt.ArrayLike, place: Place) -> Words:
    """One word [C] for each token id [C]: lane ``id & 3`` of the counter ``id >> 2``."""
    ids = np.asarray(token_ids, dtype=np.uint64)
    key = place.seed % 2**64
    counter = (ids >> np.uint64(2), place.position, place.choice, place.stream)
    lanes = np.stack(np.broadcast_arrays(*philox(counter, (key & _LOW, key >> 32))))
    return np.asarray(np.take_along_axis(lanes, (ids & np.uint64(3))[None].astype(int), 0)[0])


def uniform(token_ids: npt.ArrayLike, place: Place) -> Floats:
    """u = (word + 0.5) / 2**32, exact in float64, never 0 and never 1."""
    return (words(token_ids, place).astype(np.float64) + 0.5) / 2.0**32


def gumbel(token_ids: npt.ArrayLike, place: Place) -> Floats:
    """-log(-log u) in float64."""
    return np.asarray(-np.log(-np.log(uniform(token_ids, place))))


def draw(logits: npt.ArrayLike, place: Place, token_ids: npt.ArrayLike | None = None) -> int:
    """The token with the largest float32 logit plus Gumbel; of equals the lowest id."""
    values = np.asarray(logits, dtype=np.float32).astype(np.float64)
    ids = np.arange(len(values)) if token_ids is None else np.asarray(token_ids)
    scores = values + gumbel(ids, place)
    return int(ids[scores == scores.max()].min())


def vectors() -> dict[str, Any]:
    """``philox4x32_10`` (Random123's), ``noise`` and ``draws`` (ours)."""
    text = files("enginebay.conformance").joinpath("noise_vectors.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
