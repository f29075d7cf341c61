"""The plan: what one step computes, and what came of it."""

from typing import Literal

from .events import TokenLogprob
from .frozen import Frozen, TokenIds
from .request import SamplingParams


class BlockOp(Frozen, frozen=True, kw_only=True):
    """KV bytes to move before the step's first write, in the order of the plan.

    ``copy``: block to block; ``save``: block to host slot; ``load``: host slot to block.
    A loaded slot is free: a later operation may save into it.
    """

    kind: Literal["copy", "save", "load"]
    source: int
    target: int


class SequenceStart(Frozen, frozen=True, kw_only=True):
    """All that the executor must know of a sequence before its first span."""

    sequence_id: int
    request_id: str
    index: int
    """Which of the request's ``n`` choices; part of the noise counter."""
    token_ids: TokenIds
    """Prompt, and what was generated before a preemption."""
    num_prompt: int
    sampling: SamplingParams
    seed: int
    adapter: str | None = None


class Span(Frozen, frozen=True, kw_only=True):
    """The positions of one sequence that this step computes.

    Positions ``start .. start + num_tokens - 1`` are computed. The last
    ``len(drafts)`` of them hold drafted tokens; every other token is known to the
    executor already. The block table of the sequence is, from entry ``table_from``
    on, ``table``; earlier entries are unchanged.
    """

    sequence_id: int
    start: int
    num_tokens: int
    drafts: TokenIds = ()
    logits_from: int = -1
    """First position whose logits are wanted for sampling; -1: none. Logits are
    taken from there to the span's end: 1 without drafts, k + 1 with k drafts."""
    prompt_logits: bool = False
    """Score every prompt token that this span predicts."""
    table_from: int = 0
    table: TokenIds = ()


class StepPlan(Frozen, frozen=True, kw_only=True):
    """What one step computes, for every sequence that takes part.

    Plain data: planning ahead, another process and a replay need nothing else.
    Applied in this order: ``removed``, ``started``, ``block_ops``, ``spans``.
    """

    step: int
    spans: tuple[Span, ...] = ()
    started: tuple[SequenceStart, ...] = ()
    removed: TokenIds = ()
    """Sequences the executor can forget (ended, or preempted until started again)."""
    block_ops: tuple[BlockOp, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Positions computed in this step."""
        return sum(span.num_tokens for span in self.spans)


class SequenceResult(Frozen, frozen=True, kw_only=True):
    """What a step drew for one sequence: 0 tokens, 1, or up to k + 1 with k drafts."""

    sequence_id: int
    token_ids: TokenIds = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """For the prompt positions ``start + 1 ..`` that the span predicted."""
    error: str | None = None
    """This sequence alone failed (a sampler transform raised, logits not finite)."""
    plugin: str | None = None


class StepResult(Frozen, frozen=True, kw_only=True):
    """What a step computed. Every span of the plan is committed by its result."""

    step: int
    outputs: tuple[SequenceResult, ...] = ()
    """One entry for each span that wanted logits, in the plan's order."""
    duration: float = 0.0
    """Seconds inside the executor."""
