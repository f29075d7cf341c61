"""Reading a request's body: bounded in size, in time and in depth."""

import asyncio
import re
from typing import Any, Final, TypeVar

import msgspec
from starlette.types import Receive, Scope

from .errors import ApiError

MAX_DEPTH: Final = 100
"""Levels of nesting; templates walk through what is inside."""
SWALLOW: Final = 8
"""A body up to so many times too big is read to its end before it is refused, since a
sender that is cut off may never read the answer."""

T = TypeVar("T")
_PLACE = re.compile(r" - at `\$?\.?(.*)`$", re.DOTALL)

_MISSING = re.compile(r"Object missing required field `(.*)`")


class Gone(Exception):
    """The client left before its request was complete."""


async def read_body(scope: Scope, receive: Receive, max_bytes: int, seconds: float) -> bytes:
    """The whole body.

    :raises ApiError: 413, 415, or 408 when it takes longer than ``seconds``
    :raises Gone: the client hung up
    """
    headers = dict(scope["headers"])
    media = headers.get(b"content-type", b"application/json").split(b";")[0].strip().lower()
    if media != b"application/json" and not media.endswith(b"+json"):
        raise ApiError(415, "the body must be JSON; send content-type: application/json")
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > SWALLOW * max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(seconds):
            return await _collect(receive, max_bytes)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {seconds:g} seconds") from None


async def _collect(receive: Receive, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part = message.get("body", b"")
        size += len(part)
        if size <= max_bytes:
            parts.append(part)
        if size > SWALLOW * max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body", False):
            if size > max_bytes:
                raise _too_large(max_bytes)
            return b"".join(parts)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than {max_bytes} bytes", code="body_too_large")


def decode_object(raw: bytes) -> dict[str, Any]:
    """The body's JSON object.

    :raises ApiError: 400, it is none, or it is nested too deeply
    """
    try:
        decoded = msgspec.json.decode(raw)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(decoded, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    _check_depth(decoded)
    return decoded


def convert(value: Any, type_: type[T]) -> T:
    """Hold decoded JSON to its type.

    :raises ApiError: 400, naming the field
    """
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        message = str(error)
        found = _PLACE.search(message) or _MISSING.match(message)
        param = found.group(1) if found else None
        told = _PLACE.sub("", message).replace("`", "")
        if told.startswith("Invalid enum value"):
            told = "not one of the accepted values"
        raise ApiError(400, f"{param}: {told}" if param else told, param=param) from None


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            inner += item.values() if isinstance(item, dict) else item
        level = [item for item in inner if isinstance(item, dict | list)]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ApiError:
    return ApiError(400, f"the body is nested deeper than {MAX_DEPTH} levels", code="invalid_json")
