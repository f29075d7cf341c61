"""Scheduler: decides which tokens run next. Owns the order, never the memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..flow import Frozen
from .markers import hookspec

if TYPE_CHECKING:
    from .model import Limits


class SequenceView(Protocol):
    """What a policy may know of a sequence (one choice of a request); read only."""

    @property
    def id(self) -> int: ...
    @property
    def request_id(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def priority(self) -> int:
        """Lower runs earlier."""

    @property
    def arrival(self) -> float:
        """Seconds on the engine's clock."""

    @property
    def deadline(self) -> float | None:
        """The moment, on the engine's clock, after which the answer is worthless."""

    @property
    def num_prompt(self) -> int: ...
    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and what has been generated."""

    @property
    def num_computed(self) -> int:
        """Positions whose keys and values are in the cache and committed."""

    @property
    def max_tokens(self) -> int:
        """Tokens to generate at most."""

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""

    @property
    def num_saved(self) -> int:
        """Positions kept in host memory since it was swapped out; they come back, at the
        price of a copy, when it is started again."""

    @property
    def num_preemptions(self) -> int: ...


How = Literal["recompute", "swap", "cheapest"]
"""What becomes of a victim's cached positions. ``recompute``: they are dropped and
computed again. ``swap``: they are kept in host memory; where that has no room, they are
dropped. ``cheapest``: whatever ``PreemptionCost`` says costs less."""


class PreemptionCost(Frozen, frozen=True, kw_only=True):
    """What it would cost to bring a victim back to where it is; estimates."""

    recompute_seconds: float
    """Computing its positions again, at the pace of late; 0 while that is unknown."""
    swap_seconds: float | None = None
    """Copying them out and in again; ``None``: host memory has no room for them."""

    @property
    def cheapest(self) -> How:
        """``swap`` or ``recompute``."""
        cheap = self.swap_seconds is not None and self.swap_seconds < self.recompute_seconds
        return "swap" if cheap else "recompute"


class Grant(Frozen, frozen=True, kw_only=True):
    """The builder's answer: how many tokens it scheduled, or why none."""

    num_tokens: int = 0
    reason: str = ""
    """Empty when granted; else ``tokens``, ``seats``, ``blocks``, ``stalled``,
    ``scheduled`` (already in this step), ``done`` (nothing to compute), or ``prefix``:
    a running sequence is computing a prefix that this one begins with and will find
    cached soon. ``prefix`` concerns this sequence alone; the next one may be tried."""
    missing: int = 0
    """Blocks short, when the reason is ``blocks``."""

    def __bool__(self) -> bool:
        return self.num_tokens > 0


class StepBuilder(Protocol):
    """The only hands a scheduler has: every call keeps the step's budgets.

    A call that can't be granted changes nothing and says why, so no policy can
    overcommit tokens, seats (sequences in flight) or KV blocks.
    """

    @property
    def now(self) -> float:
        """Seconds on the engine's clock."""

    @property
    def running(self) -> Sequence[SequenceView]:
        """Started sequences that can run now, oldest start first."""

    @property
    def stalled(self) -> Sequence[SequenceView]:
        """Started sequences whose readers are behind, oldest start first. They hold
        blocks and can't run: the first that should give way."""

    @property
    def tokens_left(self) -> int: ...
    @property
    def seats_left(self) -> int: ...
    @property
    def blocks_left(self) -> int: ...
    def remaining(self, sequence: SequenceView) -> int:
        """Tokens of ``sequence`` that could be computed now: 1 in plain decoding,
        more while its prompt is unfinished or drafts wait to be verified."""

    def needed(self, sequence: SequenceView) -> int:
        """Free blocks that a waiting sequence would take until all its known tokens are
        computed; what it would share with running ones is left out."""

    def start(self, sequence: SequenceView, num_tokens: int | None = None) -> Grant:
        """Give a waiting sequence a seat and its first tokens, or say why not yet.

        ``num_tokens``: at most so many after cached positions are skipped;
        ``None``: as many as the budgets allow. On a grant the scheduler must drop it
        from its queue.
        """

    def run(self, sequence: SequenceView, num_tokens: int | None = None) -> Grant:
        """Schedule more tokens of a running sequence; once a step each."""

    def cost(self, victim: SequenceView) -> PreemptionCost:
        """What preempting a running sequence would cost."""

    def preempt(self, victim: SequenceView, how: How = "cheapest", reason: str = "") -> bool:
        """Take seat and blocks from a running sequence not scheduled in this step.

        It comes back through ``Scheduler.add``. False: it can't be preempted now.

        :param reason: why, for its timeline; empty: ``blocks`` when the last denial was
            for want of blocks, else ``policy``
        """

    def wait(self, sequence: SequenceView, reason: str) -> None:
        """Note why a policy does not even try to start a sequence, for its timeline."""


class Scheduler(Protocol):
    """A scheduling policy. Called from the step thread alone.

    Cost a step must grow with what is scheduled, not with what waits.
    """

    def add(self, sequence: SequenceView) -> None:
        """Queue a new sequence, or one that was preempted (``num_preemptions > 0``)."""

    def plan(self, build: StepBuilder) -> None:
        """Start, run and preempt through ``build``. Called once a step."""

    def remove(self, sequence_id: int) -> None:
        """Forget a sequence that ended, waiting or running; unknown ids are ignored."""

    def num_waiting(self) -> int: ...
    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` if the policy's own structures disagree."""


@dataclass(frozen=True)
class SchedulerContext:
    """What a scheduler is built with."""

    limits: "Limits"


@hookspec(firstresult=True)
def enginebay_scheduler(options: Any, context: SchedulerContext) -> Scheduler:  # type: ignore[empty-body]
    """Build the scheduler. Called once, at assembly.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: the step's limits
    """
