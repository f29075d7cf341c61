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

    :param params: request fields by name; shapes apply in this mapping's order
    :param output_ids: tokens generated before the one drawn, accepted drafts included
    :param banned_ids: end tokens, while the request's minimum is not reached
    """
    row = np.asarray(logits, dtype=np.float32).astype(np.float64).copy()
    _edit(row, params, prompt_ids, output_ids)
    row[list(banned_ids)] = -np.inf
    for name, value in params.items():
        if name in _SHAPES and value is not None:
            row = _SHAPES[name](row, value)
    return softmax(row)


def softmax(row: Row) -> Row:
    """Probabilities [V]; -inf is probability 0."""
    weights = np.exp(row - row.max())
    return np.asarray(weights / weights.sum())


def _edit(
    row: Row, params: Mapping[str, Any], prompt_ids: Sequence[int], output_ids: Sequence[int]
) -> None:
    allowed = params.get("allowed_token_ids")
    if allowed is not None:
        row[[token_id not in allowed for token_id in range(len(row))]] = -np.inf
    repetition = params.get("repetition_penalty", 1.0)
    for token_id in set(prompt_ids) | set(output_ids):
        row[token_id] *= repetition if row[token_id] < 0 else 1.0 / repetition
    for token_id in output_ids:
        row[token_id] -= params.get("frequency_penalty", 0.0)
    for token_id in set(output_ids):
        row[token_id] -= params.get("presence_penalty", 0.0)
    for key, bias in params.get("logit_bias", {}).items():
        row[int(key)] += -np.inf if bias == -100 else bias


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


_SHAPES: Final[dict[str, Callable[[Row, Any], Row]]] = {
    "temperature": _temperature,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
}
