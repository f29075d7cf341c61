"""Log-probabilities of one row, as callers get them."""

from __future__ import annotations

import math

import numpy as np
import torch

from .candidates import Candidates, top_of
from .flow import Alternative, TokenLogprob


def scored(
    logits: torch.Tensor, token_id: int, count: int, candidates: Candidates | None = None
) -> TokenLogprob:
    """A token's log-probability with the ``count`` best alternatives.

    Natural logarithms in float32 of the unmodified logits (float32 [V]); or, with
    ``candidates``, of what the chain left to draw from (mode ``processed``). Ranks go by
    logits: those that differ may round to one log-probability.
    """
    field = Candidates(logits.float()) if candidates is None else candidates
    logprobs = _logprobs(field.logits)
    own = logprob = -math.inf
    place = _place_of(field, token_id)
    if place is not None:
        own, logprob = float(field.logits[place]), float(logprobs[place])
    rank = 1 + _number_above(field.logits, own)
    return TokenLogprob(
        token=Alternative(token_id=token_id, logprob=logprob, rank=rank),
        top=_best(field, logprobs, count) if count else (),
    )


def _best(field: Candidates, logprobs: torch.Tensor, count: int) -> tuple[Alternative, ...]:
    places = Candidates(field.logits, ordered=field.ordered).best(count).token_ids()
    ids = places if field.ids is None else field.ids[places]
    pairs = zip(ids.tolist(), logprobs[places].tolist(), strict=True)
    return tuple(
        Alternative(token_id=token_id, logprob=logprob, rank=rank)
        for rank, (token_id, logprob) in enumerate(pairs, start=1)
    )


def _place_of(field: Candidates, token_id: int) -> int | None:
    if field.ids is None:
        return token_id
    found = torch.nonzero(field.ids == token_id)
    return int(found[0]) if len(found) else None


def _logprobs(logits: torch.Tensor) -> torch.Tensor:
    """float32 [C]. A row is summed alike wherever it stands and with however many threads.

    On the CPU by NumPy, in pairs: torch adds up one after another, which is off in the
    fifth digit over a large vocabulary.
    """
    if logits.device.type != "cpu":
        return torch.log_softmax(logits, dim=0)
    below = logits - top_of(logits)
    return below.sub_(math.log(float(torch.exp(below).numpy().sum())))


def _number_above(logits: torch.Tensor, bound: float) -> int:
    if logits.device.type == "cpu":
        return int(np.count_nonzero(logits.numpy() > np.float32(bound)))
    return int((logits > bound).sum())
