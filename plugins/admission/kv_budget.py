"""Admission: a request's KV blocks fit the pool, alone and beside the others."""

import math
from typing import Literal

import msgspec

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.flow import Refusal
from enginebay.hookspecs.admission import AdmissionContext, Ask, Load

from .bounds import require_budget, require_least, require_order
from .claims import Claims
from .comeback import Comeback

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For the ``budget`` chain, where the prompt's length is known."""

    mode: Literal["optimistic", "guaranteed"] = "optimistic"
    """``optimistic``: answers are taken to be shorter than allowed, by ``output_share``;
    who is wrong is preempted. ``guaranteed``: every choice claims room for ``max_tokens``
    and the claims together stay within the pool, so nobody is preempted for want of
    blocks."""
    output_share: float = 0.0
    """The part of ``max_tokens`` that a request is counted with, 0 to 1, when optimistic;
    one token is always counted."""
    overcommit: float = 0.0
    """Blocks that all admitted requests together may claim, as a multiple of the pool;
    0: no bound. Read when optimistic; ``guaranteed`` is 1 by its meaning."""
    retry_after: float = 1.0
    """Seconds told to a refused caller while the engine's pace is unknown, and the
    shortest estimate at any time."""
    max_retry_after: float = 60.0
    """The longest estimate, in seconds; up to half as much more is told."""


class KVBudget:
    """Refuses for good what can never fit, and for now what does not fit beside others.

    A prompt's full blocks are shared by the request's choices; the rest is counted for
    each. The last token of an answer is never computed, so it needs no place.
    """

    def __init__(self, name: str, block_size: int, max_model_len: int, options: Options) -> None:
        guaranteed = options.mode == "guaranteed"
        self._name = name
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._share = 1.0 if guaranteed else options.output_share
        self._overcommit = 1.0 if guaranteed else options.overcommit
        self._claims = Claims()
        self._comeback = Comeback(options.retry_after, options.max_retry_after)

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        alone, claim = self._blocks(ask, 1), self._blocks(ask, ask.n)
        if alone > load.num_blocks:
            return self._never(alone, load.num_blocks, "the KV pool holds")
        if self._overcommit:
            limit = math.floor(self._overcommit * load.num_blocks)
            if claim > limit:
                return self._never(claim, limit, "all requests together may claim")
            if self._claims.total + claim > limit:
                return self._later(ask, load, claim, limit)
        self._claims.add(ask.request_id, claim)
        return None

    def release(self, request_id: str) -> None:
        self._claims.drop(request_id)

    def _blocks(self, ask: Ask, choices: int) -> int:
        length = ask.num_prompt_tokens or 0
        full, rest = divmod(length, self._block_size)
        room = max(self._max_model_len - length, 1)
        output = room if ask.max_tokens is None else min(ask.max_tokens, room)
        counted = max(math.ceil(output * self._share), 1)
        return full + choices * math.ceil((rest + counted - 1) / self._block_size)

    def _never(self, blocks: int, limit: int, whose: str) -> Refusal:
        return Refusal(
            plugin=self._name,
            reason="kv_capacity",
            kind="invalid",
            message=(
                f"the request needs {blocks} KV blocks of {self._block_size} tokens and "
                f"{whose} {limit}: shorten the prompt, or lower max_tokens or n"
            ),
            limit=limit,
            current=blocks,
            param="prompt",
        )

    def _later(self, ask: Ask, load: Load, claim: int, limit: int) -> Refusal:
        """``retry_after``: until the mean request has left often enough."""
        claimed = self._claims.total
        wait = self._comeback.turn(ask, load, (claimed + claim - limit) / self._claims.mean)
        return Refusal(
            plugin=self._name,
            reason="kv_claimed",
            kind="server",
            message=(
                f"admitted requests claim {claimed} of {limit} KV blocks and this one "
                f"needs {claim}. Try again in {wait:g} seconds"
            ),
            limit=limit,
            current=claimed,
            retry_after=wait,
        )


@hookimpl
def enginebay_admission(options: Options, context: AdmissionContext) -> KVBudget:
    """Build it for the engine's block size and context length."""
    require_budget(context, "counting blocks")
    require_least(context, options, 0, "retry_after")
    require_order(context, options, ("retry_after", "max_retry_after"))
    if not 0 <= options.output_share <= 1:
        msg = f"{context.name}: output_share is {options.output_share}; it must be 0 to 1"
        raise StackError(msg)
    if options.overcommit < 0 or (options.mode == "guaranteed" and options.overcommit):
        msg = (
            f"{context.name}: overcommit is {options.overcommit}; it must be 0 or more, "
            "and it belongs to mode 'optimistic' alone"
        )
        raise StackError(msg)
    limits = context.limits
    return KVBudget(context.name, limits.block_size, limits.max_model_len, options)
