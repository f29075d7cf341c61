"""Tops: the largest logit of each 64. What can't matter is skipped by looking at them alone."""

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import entry, inner
from .lanes import CHUNK, largest

Floats = npt.NDArray[np.float32]


@inner
def fill_tops(logits: Any, tops: Any) -> Any:
    """The largest of each chunk into ``tops``. :return: the largest of all"""
    whole = logits.shape[0] // CHUNK
    best = np.float32(-np.inf)
    for number in range(whole):
        top = largest(logits, number * CHUNK)
        tops[number] = top
        best = top if top > best else best
    if whole < tops.shape[0]:
        top = np.float32(-np.inf)
        for place in range(whole * CHUNK, logits.shape[0]):
            top = logits[place] if logits[place] > top else top
        tops[whole] = top
        best = top if top > best else best
    return best


@entry
def _topped(logits: Any, tops: Any) -> Any:
    return fill_tops(logits, tops)


@entry
def _scaled(logits: Any, factor: Any, scaled: Any, tops: Any) -> None:
    """Rounding keeps order, so the largest scaled logit is the largest one, scaled."""
    best = fill_tops(logits, tops)
    for place in range(logits.shape[0]):
        scaled[place] = (logits[place] - best) * factor
    for number in range(tops.shape[0]):
        tops[number] = (tops[number] - best) * factor


def tops_of(logits: Floats) -> Floats:
    """float32 [ceil(C / CHUNK)] of logits (float32 [C], no NaN among them)."""
    tops = _room(logits)
    _topped(logits, tops)
    return tops


def scaled(logits: Floats, factor: float) -> tuple[Floats, Floats]:
    """Logits times ``factor`` > 0 after the largest, finite, was taken off; and their tops."""
    out, tops = np.empty_like(logits), _room(logits)
    _scaled(logits, np.float32(factor), out, tops)
    return out, tops


def _room(logits: Floats) -> Floats:
    return np.empty(-(-len(logits) // CHUNK), np.float32)
