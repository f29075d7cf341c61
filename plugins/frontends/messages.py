"""Chat messages, checked against the OpenAI shape and copied for the template.

What the template gets: plain JSON values of its own; no keys that hold ``None``
(``content`` of a tool-calling turn); tool-call arguments as objects, because templates
write them with ``tojson``; and reasoning under ``reasoning_content``, whichever of its
names it came under. Keys of unknown names are passed on.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .complaint import refuse, shown

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
_INSTEAD_OF_CONTENT: Final = ("tool_calls", "function_call", "refusal", *_REASONING)


def read_messages(messages: Sequence[Any], roles: Sequence[str] = ROLES) -> list[dict[str, Any]]:
    """Check and copy messages.

    :raises InvalidRequest: names the first wrong field, such as ``messages[2].content``
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        refuse("messages", "must be a list of at least one message")
    return [_message(f"messages[{i}]", message, roles) for i, message in enumerate(messages)]


def read_tools(tools: Sequence[Any] | None) -> list[dict[str, Any]] | None:
    """Check and copy tool definitions; an empty list is no tools.

    :raises InvalidRequest: names the first wrong field, such as ``tools[0].function.name``
    """
    if not tools:
        return None
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        if not isinstance(tool, Mapping):
            refuse(where, f"is {shown(tool)}; it must be an object")
        if tool.get("type") != "function":
            refuse(f"{where}.type", f"is {shown(tool.get('type'))}; it must be 'function'")
        function = tool.get("function")
        if not isinstance(function, Mapping):
            refuse(f"{where}.function", f"is {shown(function)}; it must be an object")
        if not isinstance(function.get("name"), str) or not function["name"]:
            refuse(f"{where}.function.name", f"is {shown(function.get('name'))}; give a name")
    return [copied(tool) for tool in tools]


def copied(value: Any) -> Any:
    """A deep copy made of plain JSON types only."""
    if isinstance(value, Mapping):
        return {str(key): copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(item) for item in value]
    if value is not None and not isinstance(value, (str, bool, int, float)):
        refuse("messages", f"hold a value of type {type(value).__name__}, which JSON has not")
    return value


def _message(where: str, message: Any, roles: Sequence[str]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        refuse(where, f"is {shown(message)}; it must be an object with a role")
    role = message.get("role")
    if role not in roles:
        refuse(f"{where}.role", f"is {shown(role)}; it must be one of {', '.join(roles)}")
    kept = {key: copied(item) for key, item in message.items() if item is not None}
    _check_content(where, kept)
    if "name" in kept and not isinstance(kept["name"], str):
        refuse(f"{where}.name", f"is {shown(kept['name'])}; it must be a string")
    if "tool_call_id" in kept and not isinstance(kept["tool_call_id"], str):
        refuse(f"{where}.tool_call_id", f"is {shown(kept['tool_call_id'])}; it must be a string")
    if "tool_calls" in kept:
        _read_tool_calls(f"{where}.tool_calls", kept)
    return _named_reasoning(kept)


def _check_content(where: str, message: dict[str, Any]) -> None:
    content = message.get("content")
    where += ".content"
    if isinstance(content, str):
        return
    if content is None:
        if message["role"] != "assistant" or not any(key in message for key in _INSTEAD_OF_CONTENT):
            refuse(where, "is missing; give a string or a list of text parts")
        return
    if not isinstance(content, list):
        refuse(where, f"is {shown(content)}; it must be a string or a list of text parts")
    if not content:
        refuse(where, "is an empty list; give at least one text part")
    for i, part in enumerate(content):
        if not isinstance(part, dict):
            refuse(f"{where}[{i}]", f"is {shown(part)}; it must be an object with a type")
        if part.get("type") != "text":
            kind = shown(part.get("type"))
            refuse(f"{where}[{i}].type", f"is {kind}; this model takes parts of type 'text' only")
        if not isinstance(part.get("text"), str):
            refuse(f"{where}[{i}].text", f"is {shown(part.get('text'))}; it must be a string")


def _read_tool_calls(where: str, message: dict[str, Any]) -> None:
    calls = message["tool_calls"]
    if not isinstance(calls, list):
        refuse(where, f"is {shown(calls)}; it must be a list")
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            refuse(f"{where}[{i}].function.name", "is missing; a call names its function")
        arguments = function.get("arguments", {})
        function["arguments"] = _arguments(f"{where}[{i}].function.arguments", arguments)


def _arguments(where: str, arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            refuse(where, f"is {shown(arguments)}; it must be the text of a JSON object")
    if not isinstance(arguments, dict):
        refuse(where, f"is {shown(arguments)}; it must be a JSON object")
    return arguments


def _named_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    for name in _REASONING:
        if name in message:
            return {"thinking": message[name], **message, "reasoning_content": message[name]}
    return message
