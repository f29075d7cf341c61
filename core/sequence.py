"""A sequence: one choice of one request, on its way through the engine."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from .flow import Accepted, SequenceStart, Usage

if TYPE_CHECKING:
    from .flow import FinishReason, Request, SamplingParams, TokenIds, TokenLogprob
    from .hookspecs.detokenizer import TextStream
    from .hookspecs.frontend import Parser


def end_ids(sampling: SamplingParams, eos_token_ids: frozenset[int]) -> frozenset[int]:
    """The tokens that end a sequence: its stop tokens, and the model's unless ignored."""
    stops = frozenset(sampling.stop_token_ids)
    return stops if sampling.ignore_eos else stops | eos_token_ids


class State(Enum):
    """Where a sequence is. It moves through ``StepBuilder`` and ``commit`` alone."""

    WAITING = "waiting"
    RUNNING = "running"
    """Holds a seat and KV blocks."""
    ENDED = "ended"


class Sequence:
    """Tokens, progress and text of one choice. Owned by the step thread.

    Tokens catch up: there is no prefill and no decode, only ``num_tokens`` known
    tokens of which ``num_computed`` have their keys and values in the cache.
    """

    __slots__ = (
        "arrival", "cut", "deadline", "drafts", "end_ids", "first_token_at", "group",
        "high_water", "id", "index", "last_token_at", "max_tokens", "num_cached",
        "num_computed", "num_computed_ever", "num_preemptions", "num_prompt",
        "num_recomputed", "num_saved", "num_scheduled", "num_written", "parser", "reason",
        "request_id", "sampling", "seed", "stalled_since", "started_at", "state", "stream",
        "table", "token_ids", "window",
    )  # fmt: skip

    def __init__(self, sequence_id: int, group: Group, index: int, max_tokens: int) -> None:
        self.id = sequence_id
        self.group = group
        self.index = index
        self.request_id = group.request.id
        """Of the request it belongs to."""
        self.sampling: SamplingParams = group.sampling
        """The request's, with model defaults merged in."""
        self.num_prompt = len(group.prompt_ids)
        """Prompt tokens."""
        self.window = group.request.window
        """Tokens that its reader may be behind; 0: no bound."""
        self.seed = group.seed
        self.arrival = group.arrival
        self.deadline = group.deadline
        self.max_tokens = max_tokens
        self.end_ids: frozenset[int] = frozenset()
        self.token_ids: list[int] = list(group.prompt_ids)
        self.drafts: TokenIds = ()
        self.state = State.WAITING
        self.num_computed = 0
        self.num_scheduled = 0
        """Positions in plans that are in flight."""
        self.num_cached = 0
        """Prompt positions taken from the cache at the last start."""
        self.num_computed_ever = 0
        """Positions computed, recomputation included."""
        self.high_water = 0
        """Positions that have been in the cache at some time, kept or lost since."""
        self.num_recomputed = 0
        """Positions computed although they had been in the cache before."""
        self.num_saved = 0
        """Positions kept in host memory since it was swapped out."""
        self.table: list[int] = []
        """Its block table; entries past what it holds may be stale."""
        self.num_preemptions = 0
        self.num_written = 0
        """Generated tokens its reader has acknowledged."""
        self.cut: tuple[FinishReason, str] | None = None
        """Why to end it at the next commit, and a message."""
        self.reason: FinishReason | None = None
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.stalled_since: float | None = None
        self.stream: TextStream | None = None
        self.parser: Parser | None = None

    @property
    def tenant(self) -> str:
        """Who asked."""
        return self.group.request.tenant

    @property
    def priority(self) -> int:
        """Lower runs earlier."""
        return self.group.request.priority

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and generated."""
        return len(self.token_ids)

    @property
    def num_generated(self) -> int:
        """Generated tokens."""
        return len(self.token_ids) - self.num_prompt

    @property
    def stalled(self) -> bool:
        """Whether its reader is past the window: it is not scheduled."""
        behind = len(self.token_ids) - self.num_prompt - self.num_written
        return 0 < self.window <= behind

    def computed(self, start: int, num_tokens: int, rejected: int) -> int:
        """A plan computed positions from ``start`` on; the last ``rejected`` are worthless.

        :return: how many of them had been in the cache before
        """
        end = start + num_tokens
        again = max(min(self.high_water, end) - start, 0) if start < self.high_water else 0
        self.num_scheduled -= num_tokens
        self.num_computed += num_tokens - rejected
        self.num_computed_ever += num_tokens
        self.num_recomputed += again
        if self.num_computed > self.high_water:
            self.high_water = self.num_computed
        self.drafts = ()
        return again

    def preempted(self, num_saved: int) -> None:
        """It lost its seat and blocks; ``num_saved`` positions are kept in host memory."""
        self.state = State.WAITING
        self.num_computed = 0
        self.num_saved = num_saved
        self.drafts = ()
        self.num_preemptions += 1
        if not num_saved and not self.index and not self.group.prompt_scored:
            self.group.prompt_logprobs.clear()  # its prompt is scored from the start again

    def start(self) -> SequenceStart:
        """What the executor must know of it."""
        return SequenceStart(
            sequence_id=self.id,
            request_id=self.request_id,
            index=self.index,
            token_ids=tuple(self.token_ids),
            num_prompt=self.num_prompt,
            sampling=self.sampling,
            seed=self.seed,
            adapter=self.group.request.adapter,
        )


class Group:
    """One accepted request: its choices and what they share."""

    __slots__ = (
        "arrival", "client", "deadline", "deferred", "error", "identity", "max_tokens",
        "num_cached", "prompt_ids", "prompt_logprobs", "prompt_scored", "request",
        "sampling", "seed", "sequences",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        client: int,
        prompt_ids: TokenIds,
        sampling: SamplingParams,
        *,
        identity: bytes,
        arrival: float,
        max_tokens: int,
    ) -> None:
        self.request = request
        self.client = client
        self.prompt_ids = prompt_ids
        self.sampling = sampling
        self.seed = sampling.seed or 0
        self.identity = identity
        self.arrival = arrival
        self.deadline = None if request.deadline is None else arrival + request.deadline
        self.max_tokens = max_tokens
        self.sequences: list[Sequence] = []
        self.deferred: list[Sequence] = []
        """Choices that wait until the first one's prompt is computed, to share it."""
        self.num_cached = 0
        self.prompt_logprobs: list[TokenLogprob] = []
        self.prompt_scored = False
        self.error: tuple[str, str | None] | None = None

    @property
    def ended(self) -> bool:
        """Whether every choice has ended."""
        return all(sequence.state is State.ENDED for sequence in self.sequences)

    def accepted(self) -> Accepted:
        """What its caller is told."""
        return Accepted(
            request_id=self.request.id,
            num_prompt_tokens=len(self.prompt_ids),
            seed=self.seed,
            max_tokens=self.max_tokens,
            prompt_token_ids=self.prompt_ids,
        )

    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(
            prompt_tokens=len(self.prompt_ids),
            completion_tokens=sum(sequence.num_generated for sequence in self.sequences),
            cached_tokens=self.num_cached,
            num_preemptions=sum(sequence.num_preemptions for sequence in self.sequences),
        )
