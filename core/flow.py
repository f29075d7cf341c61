"""What travels: requests in, plans and results inside, events out.

Everything here is a frozen ``msgspec.Struct`` without tensors, callables or open
files, so a thread, another process and a recorded replay are the same thing to
whoever stands outside the engine. Times are seconds on the engine's monotonic
clock; token counts are tokens; positions are absolute, starting at 0.

A field may be added to any of these types (a minor change of the contract); one is
never renamed, removed or given another meaning (a major change).
"""

from typing import Any, Literal

import msgspec

TokenIds = tuple[int, ...]

FinishReason = Literal["stop", "length", "capacity", "cancelled", "slow_reader", "error"]
"""Why a choice ended. ``capacity``: the KV pool cannot hold it even alone."""


class Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of every travelling type: immutable, named fields only."""


# --- what a caller asks for -------------------------------------------------------


class OpenParameters(type(msgspec.Struct)):  # type: ignore[misc]
    """Lets ``SamplingParams(temperature=0.7)`` name fields that sampler plugins own."""

    def __call__(cls, **fields: Any) -> Any:
        known = {name: value for name, value in fields.items() if name in cls.__struct_fields__}
        owned = {name: value for name, value in fields.items() if name not in known}
        if owned:
            known["transforms"] = {**known.get("transforms", {}), **owned}
        return super().__call__(**known)


class SamplingParams(Frozen, frozen=True, kw_only=True, metaclass=OpenParameters):
    """How one request is sampled.

    The typed fields are those the core itself uses. Any other keyword lands in
    ``transforms``, the open map whose names, types and ranges are declared by the
    sampler plugins of the running stack; a name that none of them owns is refused.
    """

    max_tokens: int | None = None
    """Tokens to generate at most; ``None``: up to the context limit."""
    min_tokens: int = 0
    """No stop string, stop token or end-of-sequence token counts before so many."""
    stop: tuple[str, ...] = ()
    stop_token_ids: TokenIds = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    seed: int | None = None
    """int64; ``None``: drawn at admission and reported in ``Accepted``."""
    n: int = 1
    logprobs: int | None = None
    """Alternatives reported beside each generated token; 0: only the token's own."""
    prompt_logprobs: int | None = None
    """The same for prompt tokens; such a request reuses no cached prefix."""
    logprobs_mode: Literal["raw", "processed"] = "raw"
    skip_special_tokens: bool = True
    transforms: dict[str, Any] = {}


class ChatPrompt(Frozen, frozen=True, kw_only=True, tag="chat"):
    """Messages for the model's chat template, in the OpenAI shape."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = {}


class TextPrompt(Frozen, frozen=True, kw_only=True, tag="text"):
    """Text to continue; the tokenizer's own special tokens are added."""

    text: str
    add_special_tokens: bool = True


class TokenPrompt(Frozen, frozen=True, kw_only=True, tag="tokens"):
    """Token ids to continue, taken as they are."""

    token_ids: TokenIds


Prompt = ChatPrompt | TextPrompt | TokenPrompt


class Request(Frozen, frozen=True, kw_only=True):
    """One request as it crosses the engine's edge."""

    id: str
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    tenant: str = "default"
    """Set by the transport from the caller's key, never from the request's body."""
    priority: int = 0
    """Lower runs earlier, for schedulers that look at it."""
    deadline: float | None = None
    """Seconds after arrival by which the answer is worthless."""
    adapter: str | None = None
    window: int = 0
    """Tokens that may be emitted but not yet written before the sequence is stalled;
    0: no bound (a reader in the same process)."""
    arrival: float | None = None
    """When the transport read it; ``None``: now."""


class EncodedPrompt(Frozen, frozen=True, kw_only=True):
    """A prompt as token ids, with the identity of what produced them."""

    token_ids: TokenIds
    tokenizer: str = ""
    """Hash of the tokenizer; part of the cache identity."""
    template: str = ""
    """Hash of the chat template; empty when none was applied."""


# --- what the edge answers --------------------------------------------------------


class Accepted(Frozen, frozen=True, kw_only=True, tag="accepted"):
    """The request is in the engine and will end in exactly one ``Ended`` event."""

    request_id: str
    num_prompt_tokens: int
    seed: int
    max_tokens: int
    prompt_token_ids: TokenIds = ()


class Refusal(Frozen, frozen=True, kw_only=True, tag="refused"):
    """Who refused, why, against which limit, and when to come back (promise P7)."""

    plugin: str
    reason: str
    kind: Literal["invalid", "caller", "server"]
    """``invalid``: 400, will never be accepted; ``caller``: 429; ``server``: 503."""
    message: str
    limit: float | None = None
    current: float | None = None
    retry_after: float | None = None
    """Seconds; an estimate."""
    param: str | None = None


class Invalid(Frozen, frozen=True, kw_only=True, tag="invalid"):
    """The request is wrong in itself: which field, what it held, and the fix."""

    message: str
    param: str | None = None
    code: str | None = None


class Written(Frozen, frozen=True, kw_only=True):
    """A transport's report that a choice's first ``num_tokens`` tokens are written."""

    request_id: str
    index: int
    num_tokens: int
    time: float


# --- what comes out ---------------------------------------------------------------


class Alternative(Frozen, frozen=True, kw_only=True):
    """One vocabulary entry and its log-probability (natural logarithm)."""

    token_id: int
    logprob: float
    text: str = ""
    data: bytes = b""
    """The token's own UTF-8 bytes, which may be part of a character."""
    rank: int = 0
    """1 is the most likely; 0 when not computed."""


class TokenLogprob(Frozen, frozen=True, kw_only=True):
    """A chosen token, its log-probability, and the best alternatives, best first."""

    token: Alternative
    top: tuple[Alternative, ...] = ()


class ToolCallDelta(Frozen, frozen=True, kw_only=True):
    """A piece of a tool call: ``id`` and ``name`` once, then argument text."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Delta(Frozen, frozen=True, kw_only=True, tag="delta"):
    """New tokens of one choice, as its reader sees them.

    ``content`` may be empty while bytes of a character or the beginning of a stop
    string are held back; ``token_ids`` are reported in the step that drew them.
    """

    request_id: str
    index: int
    token_ids: TokenIds = ()
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    num_generated: int = 0


class PromptScored(Frozen, frozen=True, kw_only=True, tag="prompt"):
    """Prompt log-probabilities, one entry a prompt token; the first is ``None``."""

    request_id: str
    logprobs: tuple[TokenLogprob | None, ...]
    token_ids: TokenIds = ()


class ChoiceFinished(Frozen, frozen=True, kw_only=True, tag="finished"):
    """A choice ended; no more deltas of it follow."""

    request_id: str
    index: int
    reason: FinishReason
    stop: str | int | None = None
    """The stop string or token id that ended it."""
    message: str = ""


class Usage(Frozen, frozen=True, kw_only=True):
    """Token counts of a request; ``completion_tokens`` sums over its choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    num_preemptions: int = 0


class Failure(Frozen, frozen=True, kw_only=True):
    """An error as a caller may see it: no class names, paths or tracebacks."""

    message: str
    kind: Literal["request", "engine"] = "request"
    plugin: str | None = None


class Ended(Frozen, frozen=True, kw_only=True, tag="ended"):
    """The one terminal event of an accepted request (promise P2)."""

    request_id: str
    usage: Usage
    error: Failure | None = None


Event = Delta | PromptScored | ChoiceFinished | Ended


class EventBatch(Frozen, frozen=True, kw_only=True):
    """All events of one step for one client: the reader wakes once a step."""

    step: int
    time: float
    events: tuple[Event, ...]


# --- the plan: what one step computes ---------------------------------------------


class BlockOp(Frozen, frozen=True, kw_only=True):
    """KV bytes to move before the step's first write (DESIGN: one way to move them)."""

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
