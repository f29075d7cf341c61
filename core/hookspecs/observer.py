"""Observer: told of each step and each request; reads, never changes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..flow import FinishReason, Frozen, Refusal, Usage
from .markers import hookspec

if TYPE_CHECKING:
    from ..timeline import Timeline
    from .model import Limits


class PreemptionRecord(Frozen, frozen=True, kw_only=True):
    """One sequence lost its seat and blocks."""

    request_id: str
    tenant: str
    index: int
    """Which of the request's choices."""
    by: str
    """The request that lacked blocks just before, or ``policy``."""
    how: str
    """``swap`` or ``recompute``."""
    reason: str
    num_tokens: int
    """Positions that it had in the cache."""


class ServedRecord(Frozen, frozen=True, kw_only=True):
    """What one tenant got since the record before."""

    tenant: str
    num_prefill_tokens: int
    """Prompt positions computed, those computed again after a preemption too."""
    num_generated: int


class StepRecord(Frozen, frozen=True, kw_only=True):
    """One step, after its results were committed. Counts are of this step and of all
    that happened since the record before; gauges are of now. A record of no step (the
    engine came to rest) has ``step`` -1 and ``num_sequences`` 0."""

    step: int
    time: float
    duration: float
    """Seconds from planning to emitting."""
    executor_duration: float
    num_prefill_tokens: int
    num_decode_tokens: int
    num_generated: int
    num_sequences: int
    num_running: int
    num_waiting: int
    num_used_blocks: int
    num_blocks: int
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    """Positions computed that had been computed before and were lost."""
    num_saved_blocks: int = 0
    """KV blocks copied to host memory."""
    num_loaded_blocks: int = 0
    """KV blocks copied back."""
    num_evicted_blocks: int = 0
    """Cached blocks given to somebody else."""
    num_cached_blocks: int = 0
    """Blocks that nobody holds and that could still be found."""
    oldest_wait: float = 0.0
    """Seconds that the request which has waited longest has waited."""
    token_intervals: tuple[float, ...] = ()
    """Seconds since the previous token, for each sequence that got one (not its first)."""
    first_token_delays: tuple[float, ...] = ()
    """Seconds from arrival, for each sequence that got its first token."""
    num_prompt_tokens: int = 0
    """Prompt tokens of the sequences that got their first token, cached ones included."""
    num_cached_prompt_tokens: int = 0
    """Those of them that were found in the cache or shared with another choice."""
    num_prefix_queries: int = 0
    """Prompt tokens of the sequences that started for the first time and may reuse."""
    num_prefix_hits: int = 0
    """Those of them that need not be computed."""
    preemptions: tuple[PreemptionRecord, ...] = ()
    served: tuple[ServedRecord, ...] = ()
    """By tenant, those that got something; the sums are ``num_prefill_tokens`` and
    ``num_generated``."""
    num_drafts: int = 0
    """Times that tokens were drafted for a sequence."""
    num_draft_tokens: int = 0
    accepted_drafts: tuple[int, ...] = ()
    """Drafted tokens that stood, by their place in the draft, from the first on."""
    num_swap_blocks: int = 0
    """Host slots for KV blocks."""
    num_used_swap_blocks: int = 0


class RequestRecord(Frozen, frozen=True, kw_only=True):
    """One request, after its terminal event. Times are seconds."""

    request_id: str
    tenant: str
    usage: Usage
    reasons: tuple[FinishReason, ...]
    """One for each choice."""
    n: int
    max_tokens: int
    arrival: float
    started: float | None
    first_token: float | None
    finished: float
    prefill_computed_tokens: int = 0
    recomputed_tokens: int = 0
    """Positions computed again after a preemption."""
    deadline: float | None = None
    """On the engine's clock; missed when a choice ended with reason ``deadline`` or
    ``finished`` is later."""
    error: str | None = None
    choice_tokens: tuple[int, ...] = ()
    """Tokens generated, for each choice."""


class Observer(Protocol):
    """Called from the step thread; must be quick. One that raises is switched off."""

    def on_step(self, record: StepRecord) -> None: ...
    def on_request(self, record: RequestRecord) -> None: ...
    def on_refusal(self, refusal: Refusal) -> None:
        """May come from any thread."""

    def render(self) -> str:
        """What ``/metrics`` shows of it; empty for most. Also asked after ``close``."""


@runtime_checkable
class Closing(Protocol):
    """Optional: an observer that has something to flush."""

    def close(self) -> None:
        """The engine has ended; nothing more is told. Called once, on the step thread."""


@dataclass(frozen=True)
class ObserverContext:
    """What an observer is built with."""

    model_name: str
    limits: "Limits"
    timeline: "Timeline"
    block_bytes: int = 0
    """Bytes of one KV block; 0 when unknown."""


@hookspec(firstresult=True)
def enginebay_observer(options: Any, context: ObserverContext) -> Observer:  # type: ignore[empty-body]
    """Build an observer. Called once for each name in the stack's ``observers``.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: the served name, the limits and the request timeline
    """
