"""Every error over HTTP: one shape, bounded, and nothing of the server's inside."""

import math
from typing import Final

from msgspec import UNSET

from enginebay.errors import EngineStopped, InvalidRequest, RequestRefused
from enginebay.flow import Refusal

from ...sinks.wire import ErrorBody, ErrorDetail, encode

MAX_MESSAGE: Final = 2000
"""Characters of a message; one that quotes its input must not repeat all of it."""
MAX_PARAM: Final = 200
RETRY_SECONDS: Final = 5.0
"""When to come back, where nobody has a better estimate."""
MAX_RETRY_SECONDS: Final = 86_400.0
"""Nobody's estimate reaches farther; it also makes a number of an infinite one."""


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",  # noqa: A002 (the API's own name)
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        if retry_after is not None:
            known = not math.isnan(retry_after)
            retry_after = min(retry_after, MAX_RETRY_SECONDS) if known else RETRY_SECONDS
        self.retry_after = retry_after
        self._headers = headers
        self.detail = ErrorDetail(
            message=_cut(message, MAX_MESSAGE),
            type=type,
            param=None if param is None else _cut(param, MAX_PARAM),
            code=code,
            retry_after=UNSET if retry_after is None else retry_after,
        )

    def body(self) -> bytes:
        """The JSON body."""
        return encode(ErrorBody(error=self.detail))

    def headers(self) -> list[tuple[bytes, bytes]]:
        """``Retry-After`` in whole seconds, rounded up, where there is one; and others."""
        if self.retry_after is None:
            return [*self._headers]
        seconds = max(1, math.ceil(self.retry_after))
        return [*self._headers, (b"retry-after", b"%d" % seconds)]


class Refused(ApiError):
    """Admission turned a request away: who, why, which limit, and when to come back."""

    def __init__(self, refusal: Refusal) -> None:
        status, kind = {
            "invalid": (400, "invalid_request_error"),
            "caller": (429, "rate_limit_error"),
            "server": (503, "overloaded_error"),
        }[refusal.kind]
        retry = refusal.retry_after if status == 400 else refusal.retry_after or RETRY_SECONDS
        super().__init__(
            status,
            refusal.message,
            type=kind,
            param=refusal.param,
            code=refusal.reason,
            retry_after=retry,
        )
        self.detail = ErrorDetail(
            message=self.detail.message,
            type=kind,
            param=self.detail.param,
            code=refusal.reason,
            plugin=refusal.plugin,
            reason=refusal.reason,
            limit=UNSET if refusal.limit is None else refusal.limit,
            current=UNSET if refusal.current is None else refusal.current,
            retry_after=self.detail.retry_after,
        )


def unavailable(message: str, code: str = "unavailable") -> ApiError:
    """The server can't take requests now."""
    return ApiError(503, message, type="server_error", code=code, retry_after=RETRY_SECONDS)


def api_error(error: Exception) -> ApiError:
    """What a caller is told of an exception; an unknown one is told nothing of."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequest):
        detail = error.detail
        return ApiError(400, detail.message, param=detail.param, code=detail.code)
    if isinstance(error, RequestRefused):
        return Refused(error.refusal)
    if isinstance(error, EngineStopped):
        return unavailable(str(error), "engine_stopped")
    return ApiError(500, "internal error", type="server_error", code="internal_error")


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "..."
