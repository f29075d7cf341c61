"""``POST /v1/completions``: its body.

``max_tokens`` is 16 when absent, as the API says. 0 generates nothing: with ``echo`` the
prompt comes back, scored if ``logprobs`` is set. ``logprobs`` goes up to 20.
"""

import time
from typing import Any, Final

from enginebay.flow import Prompt, TextPrompt, TokenPrompt
from enginebay.hookspecs.sink import Part, Reply

from .body import decode_object
from .call import Call, Origin, answer_id, engine_requests
from .errors import ApiError
from .fields import Common, split

DEFAULT_MAX_TOKENS: Final = 16
MAX_TOKEN_ID: Final = 2**31 - 1
"""No vocabulary is larger; the engine knows its own."""


class CompletionBody(Common, kw_only=True):
    """The fields of this endpoint alone."""

    prompt: Any
    echo: bool | None = None
    logprobs: int | None = None
    add_special_tokens: bool | None = None

    def check(self) -> None:
        """:raises ApiError: fields that contradict each other"""
        super().check()
        if self.echo and self.prompt_logprobs is not None:
            message = "prompt_logprobs and echo exclude each other; use echo with logprobs"
            raise ApiError(400, message, param="prompt_logprobs")

    def prompts(self, max_choices: int) -> list[Prompt]:
        """A text, a list of texts, token ids, or a list of those.

        :raises ApiError: it is none of them, or more than ``max_choices`` would come of it
        """
        given = self.prompt
        if isinstance(given, str):
            return [self._text(given)]
        if not isinstance(given, list) or not given:
            raise _wrong()
        if isinstance(given[0], int):
            return [_tokens(given)]
        if len(given) * (self.n or 1) > max_choices:
            message = f"prompt: {len(given)} prompts make more than {max_choices} choices"
            raise ApiError(400, message, param="prompt")
        if isinstance(given[0], str):
            return [self._text(text) for text in given]
        return [_tokens(ids) for ids in given]

    def _text(self, text: Any) -> TextPrompt:
        if not isinstance(text, str):
            raise _wrong()
        special = True if self.add_special_tokens is None else self.add_special_tokens
        return TextPrompt(text=text, add_special_tokens=special)


def _tokens(ids: Any) -> TokenPrompt:
    if not isinstance(ids, list) or not ids:
        raise _wrong()
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise _wrong()
        if not 0 <= token_id <= MAX_TOKEN_ID:
            message = "prompt: a token id is negative or larger than any vocabulary"
            raise ApiError(400, message, param="prompt")
    return TokenPrompt(token_ids=tuple(ids))


def _wrong() -> ApiError:
    return ApiError(
        400,
        "prompt must be a text, a list of texts, a list of token ids, or a list of such lists; "
        "none of them empty",
        param="prompt",
    )


def read_completion(raw: bytes, origin: Origin, window: int, max_choices: int) -> Call:
    """Parse a body.

    :raises ApiError: it is wrong, or asks for what is not supported
    """
    body, transforms = split(decode_object(raw), CompletionBody)
    prompts = body.prompts(max_choices)
    scores = body.prompt_logprobs
    if body.echo:
        ids = any(isinstance(prompt, TokenPrompt) for prompt in prompts)
        scores = body.logprobs if body.logprobs is not None else (0 if ids else None)
    limit = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    sampling = body.sampling(
        transforms, max_tokens=limit, logprobs=body.logprobs, prompt_logprobs=scores
    )
    id_ = answer_id("cmpl-")
    requests = engine_requests(body, id_, prompts, sampling, origin, window)
    reply = Reply(
        request_id=id_,
        kind="completion",
        model=body.model,
        created=int(time.time()),
        n=sampling.n,
        include_usage=body.include_usage,
        logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs or 0,
        return_token_ids=bool(body.return_token_ids),
        prompt_logprobs=body.prompt_logprobs is not None,
        parts=tuple(
            Part(
                request_id=request.id,
                echo=prompt.text if body.echo and isinstance(prompt, TextPrompt) else None,
                echo_tokens=bool(body.echo) and isinstance(prompt, TokenPrompt),
            )
            for request, prompt in zip(requests, prompts, strict=True)
        ),
    )
    return Call(body.model, requests, reply, bool(body.stream))
