"""Log-probabilities of one row, as callers get them."""

from __future__ import annotations

import torch

from .candidates import Candidates
from .flow import Alternative, TokenLogprob


def scored(
    logits: torch.Tensor, token_id: int, count: int, candidates: Candidates | None = None
) -> TokenLogprob:
    """A token's log-probability with the ``count`` best alternatives.

    Natural logarithms in float32 of the unmodified logits (float32 [V]); or, with
    ``candidates``, of what the chain left to draw from (mode ``processed``).
    """
    field = Candidates(logits) if candidates is None else candidates
    logprobs = torch.log_softmax(field.logits.float(), dim=0)
    ids = field.token_ids()
    own = torch.nonzero(ids == token_id).squeeze(1)
    value = float(logprobs[own[0]]) if len(own) else float("-inf")
    best = Candidates(logprobs, field.ids, ordered=field.ordered).best(count) if count else None
    return TokenLogprob(
        token=Alternative(token_id=token_id, logprob=value, rank=1 + int((logprobs > value).sum())),
        top=()
        if best is None
        else tuple(
            Alternative(token_id=token, logprob=logprob, rank=rank)
            for rank, (token, logprob) in enumerate(
                zip(best.token_ids().tolist(), best.logits.tolist(), strict=True), start=1
            )
        ),
    )
