"""Draw: the largest logit plus Gumbel noise is a draw from the softmax.

Gumbel-max (Maddison et al., arXiv 1411.0030) with noise that is a function of seed,
position, choice and token id, so that a draw depends on nothing but its request: not
on neighbours, order, or which candidates were narrowed away before.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import torch

from enginebay import hookimpl
from enginebay.candidates import Candidates
from enginebay.flow import SamplingParams
from enginebay.hookspecs.sampler import Field, RowView, SamplerContext, Transform

from .narrowing import MANY, row_of
from .philox import place
from .winner import best_among, best_of_row

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None of its own."""


class Gumbel:
    """Draws one candidate. Of equal scores the lower id wins."""

    fields: tuple[Field, ...] = ()

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def parse(self, name: str, value: Any, vocab_size: int) -> Any:
        """It owns no field: ``seed`` and ``n`` are the core's."""
        msg = f"gumbel owns no field {name!r}"
        raise ValueError(msg)

    def active(self, params: Mapping[str, Any], sampling: SamplingParams) -> bool:
        """Always: a chain ends with its draw."""
        return True

    def draw(self, candidates: Candidates, view: RowView) -> int:
        """Noise is computed for tokens that could still win, and for few others."""
        at = place(view.seed, view.position, view.index)
        logits, ids = candidates.logits.float().cpu(), candidates.ids
        if ids is None:
            row = candidates if logits is candidates.logits else Candidates(logits)
            return int(best_of_row(*row_of(row), at))
        ids = ids.cpu().contiguous()
        if len(ids) <= MANY:
            return int(best_among(logits.contiguous().numpy(), ids.numpy(), at))
        full = torch.full((self.vocab_size,), -torch.inf).scatter(0, ids, logits)
        return int(best_of_row(*row_of(Candidates(full)), at))


@hookimpl
def enginebay_sampler(options: Options, context: SamplerContext) -> Transform:
    """Build it, compiled: the first request does not wait for that."""
    some = Candidates(torch.from_numpy(np.zeros(4, dtype=np.float32)))
    best_of_row(*row_of(some), place(0, 0, 0))
    best_among(some.logits.numpy(), some.token_ids().numpy(), place(0, 0, 0))
    return Gumbel(context.vocab_size)
