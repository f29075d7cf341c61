"""What every answer of the OpenAI endpoints must look like, as plain functions.

Each raises ``AssertionError`` saying what is wrong. They take what came over the wire,
bytes and decoded JSON, so they hold for any server. Spec: OpenAI API reference (chat,
completions, streaming), WHATWG HTML *Server-sent events* for the framing.
"""

import json
from dataclasses import dataclass, field
from typing import Any

FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "abort"})
MAX_ERROR_BYTES = 65536
LEAKS = ("Traceback", ".py", "Error:", "Exception")


@dataclass
class StreamedChoice:
    """One choice, put together from its chunks."""

    text: str = ""
    reasoning: str = ""
    role: str | None = None
    finish_reason: str | None = None
    num_chunks: int = 0
    tool_calls: dict[int, dict[str, str]] = field(default_factory=dict)
    tokens: list[dict[str, Any]] = field(default_factory=list)
    """Chat log-probabilities."""
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    """Completion log-probabilities, the lists joined."""


@dataclass
class Stream:
    """A checked stream."""

    choices: dict[int, StreamedChoice]
    usage: dict[str, Any] | None
    error: dict[str, Any] | None
    ids: tuple[Any, ...] | None


def sse_data(raw: bytes) -> list[str]:
    """The ``data`` of each event; any other line, or a half event, is wrong."""
    require(raw.endswith(b"\n\n"), "the stream does not end with a blank line")
    events = []
    for block in raw.decode("utf-8").split("\n\n")[:-1]:
        require(block.startswith("data: "), f"not a data event: {block[:80]!r}")
        require("\n" not in block, f"an event of several lines: {block[:80]!r}")
        events.append(block.removeprefix("data: "))
    return events


def check_stream(raw: bytes, *, chat: bool, n: int = 1, include_usage: bool = False) -> Stream:
    """A whole stream, to ``[DONE]`` or to its one error event."""
    events = sse_data(raw)
    require(bool(events), "an empty stream")
    chunks: list[Any] = [event if event == "[DONE]" else json.loads(event) for event in events]
    stream = Stream({i: StreamedChoice() for i in range(n)}, None, None, None)
    if isinstance(chunks[-1], dict) and "error" in chunks[-1]:
        stream.error = check_error(events[-1].encode())
    else:
        require(chunks[-1] == "[DONE]", "the stream ends neither with [DONE] nor with an error")
    for chunk in chunks[:-1]:
        require(isinstance(chunk, dict), "[DONE] is not the last event")
        require("error" not in chunk, "an error event is not the last one")
        _take_chunk(stream, chunk, chat=chat)
    if stream.error is None:
        _check_end(stream, chat=chat, include_usage=include_usage)
    else:
        finished = [c.finish_reason for c in stream.choices.values() if c.finish_reason == "abort"]
        require(not finished, "an abort stands in front of an error")
    return stream


def _take_chunk(stream: Stream, chunk: dict[str, Any], *, chat: bool) -> None:
    kind = "chat.completion.chunk" if chat else "text_completion"
    require(chunk.get("object") == kind, f"object is {chunk.get('object')!r}")
    ids = tuple(chunk.get(name) for name in ("id", "created", "model"))
    stream.ids = stream.ids or ids
    require(stream.ids == ids and None not in ids, "id, created or model changes between chunks")
    require(stream.usage is None, "a chunk follows the usage chunk")
    if chunk.get("usage") is not None:
        require(chunk["choices"] == [], "the usage chunk has choices")
        every = all(choice.finish_reason for choice in stream.choices.values())
        require(every, "the usage chunk comes before a finish reason")
        stream.usage = check_usage(chunk["usage"])
        return
    require(len(chunk["choices"]) > 0, "a chunk without choices that is not the usage chunk")
    for part in chunk["choices"]:
        require(part["index"] in stream.choices, f"unknown choice {part['index']}")
        _take_choice(stream.choices[part["index"]], part, chat=chat)


def _take_choice(choice: StreamedChoice, part: dict[str, Any], *, chat: bool) -> None:
    require(choice.finish_reason is None, "a chunk follows the finish reason of its choice")
    choice.num_chunks += 1
    if chat:
        delta = part["delta"]
        first = choice.num_chunks == 1
        require(("role" in delta) == first, "the role is not exactly in the first delta")
        choice.role = delta.get("role", choice.role)
        choice.text += delta.get("content") or ""
        choice.reasoning += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or ():
            _take_call(choice, call)
        if part.get("logprobs"):
            choice.tokens += part["logprobs"]["content"]
    else:
        choice.text += part["text"]
        for name, values in (part.get("logprobs") or {}).items():
            choice.logprobs.setdefault(name, []).extend(values)
    reason = part["finish_reason"]
    require(reason is None or reason in FINISH_REASONS, f"finish reason {reason!r}")
    choice.finish_reason = reason


def _take_call(choice: StreamedChoice, call: dict[str, Any]) -> None:
    known = choice.tool_calls.get(call["index"])
    function = call["function"]
    if known is None:
        require(bool(call.get("id")), "a tool call begins without an id")
        require(bool(function.get("name")), "a tool call begins without a name")
        require(call.get("type") == "function", "a tool call begins without its type")
        known = {"id": call["id"], "name": function["name"], "arguments": ""}
        choice.tool_calls[call["index"]] = known
    else:
        require("id" not in call and "name" not in function, "id or name of a call comes twice")
    known["arguments"] += function.get("arguments", "")


def _check_end(stream: Stream, *, chat: bool, include_usage: bool) -> None:
    for index, choice in stream.choices.items():
        require(choice.finish_reason is not None, f"choice {index} has no finish reason")
        require(not chat or choice.role == "assistant", f"choice {index} has no role")
    require((stream.usage is not None) == include_usage, "usage chunk missing or not asked for")


def check_usage(usage: dict[str, Any]) -> dict[str, Any]:
    """Token counts that add up."""
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    prompt, completion, total = (usage[name] for name in names)
    require(prompt + completion == total, f"token counts do not add up: {usage}")
    return usage


def check_error(raw: bytes) -> dict[str, Any]:
    """An error body: the four fields, bounded, and nothing of the server's inside."""
    require(len(raw) < MAX_ERROR_BYTES, f"an error body of {len(raw)} bytes")
    body = json.loads(raw)
    require(set(body) == {"error"}, "an error body holds something beside 'error'")
    error: dict[str, Any] = body["error"]
    for name in ("message", "type", "param", "code"):
        require(name in error, f"an error without {name!r}")
    require(isinstance(error["message"], str) and error["message"] != "", "an empty message")
    text = raw.decode()
    for leak in LEAKS:
        require(leak not in text, f"the error shows {leak!r}")
    return error


def check_chat_logprobs(text: str, tokens: list[dict[str, Any]], num_top: int) -> None:
    """``content[]``: bytes joined are the text, alternatives as many as asked for."""
    joined = b"".join(bytes(token["bytes"]) for token in tokens)
    require(joined.decode("utf-8", "replace") == text, "the bytes joined are not the text")
    for token in tokens:
        require(set(token) == {"token", "logprob", "bytes", "top_logprobs"}, f"fields: {token}")
        require(token["logprob"] <= 0, f"logprob {token['logprob']}")
        require(len(token["top_logprobs"]) == num_top, f"{len(token['top_logprobs'])} alternatives")


def check_text_logprobs(text: str, logprobs: dict[str, list[Any]], *, echo: bool = False) -> None:
    """Four lists of equal length; offsets point at their tokens."""
    names = {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    require(set(logprobs) == names, f"fields: {sorted(logprobs)}")
    lengths = {len(values) for values in logprobs.values()}
    require(len(lengths) == 1, f"lists of different lengths: {lengths}")
    if echo:
        require(logprobs["token_logprobs"][0] is None, "the first echoed token has a logprob")
    nulls = [i for i, value in enumerate(logprobs["token_logprobs"]) if value is None]
    require(nulls == ([0] if echo else []), f"null logprobs at {nulls}")
    offsets = logprobs["text_offset"]
    require(offsets == sorted(offsets), "offsets do not ascend")
    for token, offset in zip(logprobs["tokens"], offsets, strict=True):
        if not token.startswith("bytes:"):
            require(text[offset:].startswith(token), f"offset {offset} does not show {token!r}")


def require(holds: bool, message: str) -> None:
    """``assert`` that also holds under ``-O``."""
    if not holds:
        raise AssertionError(message)
