"""``POST /v1/chat/completions``: its body."""

import time
from typing import Annotated, Any

import msgspec

from enginebay.flow import ChatPrompt
from enginebay.hookspecs.sink import Reply

from .body import convert, decode_object
from .call import Call, Origin, answer_id, engine_requests
from .errors import ApiError
from .fields import Common, split


class Function(msgspec.Struct, kw_only=True):
    """What a tool must say of its function; the rest goes to the template as it is."""

    name: str
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct, kw_only=True):
    """One entry of ``tools``."""

    type: str
    function: Function


class ChatBody(Common, kw_only=True):
    """The fields of this endpoint alone."""

    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    echo: bool | None = None

    def check(self) -> None:
        """:raises ApiError: fields that contradict each other"""
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        limit = self.limit
        if limit is not None and limit < 1:
            name = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
            raise ApiError(400, f"{name}: {limit} is not accepted; ask for 1 or more", param=name)
        if self.max_tokens is not None and self.max_tokens != limit:
            message = "max_tokens and max_completion_tokens differ; send one of them"
            raise ApiError(400, message, param="max_tokens")
        if self.tool_choice not in (None, "none", "auto"):
            message = "tool_choice: only 'none' and 'auto' are supported"
            raise ApiError(400, message, param="tool_choice")
        if self.echo or self.add_special_tokens:
            name = "echo" if self.echo else "add_special_tokens"
            message = f"{name} is not supported for chat; leave it out or set it to false"
            raise ApiError(400, message, param=name)
        convert({"tools": self.tools}, _Tools)

    @property
    def limit(self) -> int | None:
        """Tokens to generate at most; ``None``: up to the context limit."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def prompt(self) -> ChatPrompt:
        """Messages and tools for the template. ``tool_choice: none`` shows no tools."""
        tools = self.tools if self.tools and self.tool_choice != "none" else None
        continues = bool(self.continue_final_message)
        generates = self.add_generation_prompt
        return ChatPrompt(
            messages=tuple(self.messages),
            tools=None if tools is None else tuple(tools),
            add_generation_prompt=not continues if generates is None else generates,
            continue_final_message=continues,
            template_kwargs=self.chat_template_kwargs or {},
        )


class _Tools(msgspec.Struct):
    tools: list[Tool] | None


def read_chat(raw: bytes, origin: Origin, window: int) -> Call:
    """Parse a body.

    :raises ApiError: it is wrong, or asks for what is not supported
    """
    body, transforms = split(decode_object(raw), ChatBody)
    top = body.top_logprobs or 0
    sampling = body.sampling(
        transforms, max_tokens=body.limit, logprobs=top if body.logprobs else None
    )
    id_ = answer_id("chatcmpl-")
    reply = Reply(
        request_id=id_,
        kind="chat",
        model=body.model,
        created=int(time.time()),
        n=sampling.n,
        include_usage=body.include_usage,
        logprobs=bool(body.logprobs),
        top_logprobs=top,
        return_token_ids=bool(body.return_token_ids),
        prompt_logprobs=body.prompt_logprobs is not None,
    )
    requests = engine_requests(body, id_, [body.prompt()], sampling, origin, window)
    return Call(body.model, requests, reply, bool(body.stream))
