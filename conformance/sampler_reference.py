"""What a sampler chain should do to a distribution, written plainly in float64.

Slow and obvious on purpose: every filter sorts, every step works on whole rows. It
knows the request fields of the shipped transforms; anything else is not its business.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float64]
GREEDY_BELOW: Final = 1e-5


def probabilities(
    logits: npt.ArrayLike,
    params: Mapping[str, Any],
    *,
    prompt_ids: Sequence[int] = (),
    output_ids: Sequence[int] = (),
    banned_ids: Sequence[int] = (),
) -> Row:
    """The distribution [V] that a token is drawn from.

    :param params: request fields by name; transforms apply in this mapping's order
    :param output_ids: tokens generated before the one drawn, accepted drafts included
    :param banned_ids: end tokens, while the request's minimum is not reached
    """
    row = np.asarray(logits, dtype=np.float32).astype(np.float64).copy()
    row[list(banned_ids)] = -np.inf
    for name, value in params.items():
        if value is None:
            continue
        if name in _PENALTIES:
            _penalize(row, name, value, prompt_ids, output_ids)
        else:
            row = _TRANSFORMS[name](row, value)
    return softmax(row)


def softmax(row: Row) -> Row:
    """Probabilities [V]; -inf is probability 0."""
    weights = np.exp(row - row.max())
    return np.asarray(weights / weights.sum())


def _penalize(
    row: Row, name: str, value: float, prompt_ids: Sequence[int], output_ids: Sequence[int]
) -> None:
    if name == "repetition_penalty":
        for token_id in set(prompt_ids) | set(output_ids):
            row[token_id] *= value if row[token_id] < 0 else 1.0 / value
        return
    for token_id in output_ids if name == "frequency_penalty" else set(output_ids):
        row[token_id] -= value


def _allowed_token_ids(row: Row, allowed: Sequence[int]) -> Row:
    return _keep(row, np.array(sorted(set(allowed))))


def _logit_bias(row: Row, biases: Mapping[Any, float]) -> Row:
    biased = row.copy()
    for key, bias in biases.items():
        biased[int(key)] += -np.inf if bias == -100 else bias
    return biased


def _temperature(row: Row, temperature: float) -> Row:
    if temperature < GREEDY_BELOW:
        return _top_k(row, 1)
    return np.asarray(row / temperature)


def _top_k(row: Row, k: int) -> Row:
    return _keep(row, _by_likelihood(row)[:k]) if k > 0 else row


def _top_p(row: Row, p: float) -> Row:
    order = _by_likelihood(row)
    before = np.concatenate([[0.0], np.cumsum(softmax(row)[order])[:-1]])
    return _keep(row, order[before < p])


def _min_p(row: Row, p: float) -> Row:
    chance = softmax(row)
    return _keep(row, np.flatnonzero(chance >= p * chance.max()))


def _by_likelihood(row: Row) -> npt.NDArray[np.int64]:
    """Token ids, best first; equal logits by ascending id."""
    return np.argsort(-row, kind="stable")


def _keep(row: Row, token_ids: npt.NDArray[np.int64]) -> Row:
    kept = np.full_like(row, -np.inf)
    kept[token_ids] = row[token_ids]
    return kept


_PENALTIES: Final = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_TRANSFORMS: Final[dict[str, Callable[[Row, Any], Row]]] = {
    "allowed_token_ids": _allowed_token_ids,
    "logit_bias": _logit_bias,
    "temperature": _temperature,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
}
