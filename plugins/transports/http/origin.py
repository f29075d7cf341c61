"""Where a request comes from, as its connection and its headers tell."""

import time
from typing import Final

from starlette.types import Scope

from .call import Origin
from .keyring import Caller

ATTEMPT_HEADERS: Final = (b"x-stainless-retry-count", b"retry-attempt")
"""What the official clients send with every request, and a name for all others."""
MOST_ATTEMPTS: Final = 1000
"""A larger number is no count of retries."""


def caller_of(scope: Scope) -> Caller:
    """The caller that the gate named. Nothing that needs one is reached without."""
    found: Caller = scope["state"]["caller"]
    return found


def origin_of(scope: Scope) -> Origin:
    """Tenant, moment and attempt; nothing of it comes from the body."""
    return Origin(caller_of(scope).tenant, time.monotonic(), _attempt(scope))


def _attempt(scope: Scope) -> int:
    """How often the caller has tried before; 0 where that can't be told."""
    given = dict(scope["headers"])
    for name in ATTEMPT_HEADERS:
        value = given.get(name)
        if value is not None:
            known = value.isdigit() and len(value) <= len(str(MOST_ATTEMPTS))
            count = int(value) if known else 0
            return count if count <= MOST_ATTEMPTS else 0
    return 0
