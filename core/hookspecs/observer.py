"""Observer: told of each step and each request; reads, never changes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..flow import FinishReason, Frozen, Refusal, Usage
from .markers import hookspec

if TYPE_CHECKING:
    from ..timeline import Timeline
    from .model import Limits


class StepRecord(Frozen, frozen=True, kw_only=True):
    """One step, after its results were committed."""

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


class Observer(Protocol):
    """Called from the step thread; must be quick. One that raises is switched off."""

    def on_step(self, record: StepRecord) -> None: ...
    def on_request(self, record: RequestRecord) -> None: ...
    def on_refusal(self, refusal: Refusal) -> None:
        """May come from any thread."""

    def render(self) -> str:
        """What ``/metrics`` shows of it; empty for most."""


@dataclass(frozen=True)
class ObserverContext:
    """What an observer is built with."""

    model_name: str
    limits: "Limits"
    timeline: "Timeline"


@hookspec(firstresult=True)
def enginebay_observer(options: Any, context: ObserverContext) -> Observer:  # type: ignore[empty-body]
    """Build an observer. Called once for each name in the stack's ``observers``.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: the served name, the limits and the request timeline
    """
