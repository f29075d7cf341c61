"""What a caller asks for, and what the edge answers."""

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from .frozen import Frozen, TokenIds


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

    if TYPE_CHECKING:
        # What the metaclass accepts: any further keyword is a field that a sampler owns.
        def __init__(
            self,
            *,
            max_tokens: int | None = None,
            min_tokens: int = 0,
            stop: tuple[str, ...] = (),
            stop_token_ids: TokenIds = (),
            include_stop_str_in_output: bool = False,
            ignore_eos: bool = False,
            seed: int | None = None,
            n: int = 1,
            logprobs: int | None = None,
            prompt_logprobs: int | None = None,
            logprobs_mode: Literal["raw", "processed"] = "raw",
            skip_special_tokens: bool = True,
            transforms: dict[str, Any] | None = None,
            **owned_by_samplers: Any,
        ) -> None: ...


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
    attempt: int = 0
    """How often the caller has tried before, as far as its transport knows."""


class EncodedPrompt(Frozen, frozen=True, kw_only=True):
    """A prompt as token ids, with the identity of what produced them."""

    token_ids: TokenIds
    tokenizer: str = ""
    """Hash of the tokenizer; part of the cache identity."""
    template: str = ""
    """Hash of the chat template; empty when none was applied."""


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
