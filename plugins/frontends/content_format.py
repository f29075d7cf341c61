"""Does a template take content as a string, or as a list of parts? It is asked.

Templates don't say which they take, and one that is given the wrong kind writes the
list as Python would print it, or leaves it out. So each role's content is rendered in
both kinds beforehand, and what comes out decides.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from enginebay.errors import InvalidRequest

ContentFormat = Literal["string", "parts", "parts-only"]
Render = Callable[[list[dict[str, Any]]], str]

_FIRST: Final = "qzfirstqz"
_SECOND: Final = "qzsecondqz"
_LEAK: Final = "qzleakqz"
"""In a key that no template reads: seen when a part is printed whole."""

_CALL: Final[dict[str, Any]] = {
    "id": "call00000",
    "type": "function",
    "function": {"name": "f", "arguments": {}},
}
_BEFORE: Final[dict[str, list[dict[str, Any]]]] = {
    "assistant": [{"role": "user", "content": "x"}],
    "tool": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    ],
}
_AFTER: Final[dict[str, list[dict[str, Any]]]] = {
    "system": [{"role": "user", "content": "x"}],
    "developer": [{"role": "user", "content": "x"}],
}


def content_format(render: Render, role: str) -> ContentFormat:
    """What a template takes as the content of ``role``; a string if it refuses both."""
    parts = [{"type": "text", "text": text, "extra": _LEAK} for text in (_FIRST, _SECOND)]
    as_parts = _try(render, role, parts)
    if _FIRST not in as_parts or _SECOND not in as_parts or _LEAK in as_parts:
        return "string"
    return "parts" if _FIRST in _try(render, role, _FIRST) else "parts-only"


def fit_content(message: Mapping[str, Any], form: ContentFormat, joiner: str) -> dict[str, Any]:
    """A message whose content is of the kind that its template takes."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part["text"] for part in content]
        fitted = joiner.join(texts) if form == "string" else [_part(text) for text in texts]
        return {**message, "content": fitted}
    if isinstance(content, str) and form == "parts-only":
        return {**message, "content": [_part(content)]}
    return dict(message)


def _part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _try(render: Render, role: str, content: Any) -> str:
    message = {"role": role, "content": content, "tool_call_id": "call00000", "name": "f"}
    if role != "tool":
        del message["tool_call_id"], message["name"]
    try:
        return render([*_BEFORE.get(role, []), message, *_AFTER.get(role, [])])
    except InvalidRequest:
        return ""
