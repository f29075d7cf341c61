"""Observer: one structured line a request that ended, and one a refusal.

Preemptions are logged by the core, each as it happens. Refusals come in floods, so they
are bounded a second; those left out are counted in the next line.
"""

import time
from threading import Lock
from typing import Literal

import msgspec
import structlog

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.flow import Refusal
from enginebay.hookspecs.observer import ObserverContext, RequestRecord, StepRecord

CONTRACT = (1, 0)

log = structlog.get_logger("enginebay.requests")

Level = Literal["debug", "info", "warning", "error"]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How loud, and how often."""

    level: Level = "info"
    """Of a request that ended as it asked."""
    trouble: Level = "warning"
    """Of one that ended with an error or past its deadline, and of refusals."""
    refusals_per_second: int = 10
    """Lines of refusals at most; 0: none."""


class RequestLog:
    """Tells requests and refusals; steps are too many."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lock = Lock()
        self._second = -1
        self._told = 0
        self._left_out = 0

    def on_step(self, record: StepRecord) -> None:
        """Not told."""

    def on_request(self, record: RequestRecord) -> None:
        """Counts in tokens, times in seconds; what did not happen is left out."""
        usage, first = record.usage, record.first_token
        late = record.deadline is not None and record.finished > record.deadline
        longest = max(record.choice_tokens, default=0)
        facts = {
            "queue": _between(record.arrival, record.started),
            "first_token": _between(record.arrival, first),
            "token_interval": _between(first, record.finished, longest - 1),
            "seconds": _between(record.arrival, record.finished),
            "error": record.error,
            "late": late or None,
        }
        trouble = record.error is not None or late or "deadline" in record.reasons
        self._log(
            self._options.trouble if trouble else self._options.level,
            "request ended",
            request_id=record.request_id,
            tenant=record.tenant,
            reasons=list(record.reasons),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            preemptions=usage.num_preemptions,
            recomputed_tokens=record.recomputed_tokens,
            **{name: fact for name, fact in facts.items() if fact is not None},
        )

    def on_refusal(self, refusal: Refusal) -> None:
        """Who refused, why, against which limit."""
        with self._lock:
            second = int(time.monotonic())
            if second != self._second:
                self._second, self._told = second, 0
            if self._told >= self._options.refusals_per_second:
                self._left_out += 1
                return
            self._told += 1
            left_out, self._left_out = self._left_out, 0
        facts = {
            "limit": refusal.limit,
            "current": refusal.current,
            "retry_after": refusal.retry_after,
            "left_out": left_out or None,
        }
        self._log(
            self._options.trouble,
            "request refused",
            plugin=refusal.plugin,
            reason=refusal.reason,
            kind=refusal.kind,
            **{name: fact for name, fact in facts.items() if fact is not None},
        )

    def render(self) -> str:
        """Nothing for ``/metrics``."""
        return ""

    def _log(self, level: Level, event: str, **facts: object) -> None:
        getattr(log, level)(event, **facts)


def _between(begin: float | None, end: float | None, parts: int = 1) -> float | None:
    """Seconds, to the microsecond; ``None`` where there is no such time."""
    if begin is None or end is None or parts < 1:
        return None
    return round((end - begin) / parts, 6)


@hookimpl
def enginebay_observer(options: Options, context: ObserverContext) -> RequestLog:
    """Build it; log lines go where the process sends them."""
    if options.refusals_per_second < 0:
        msg = f"log: refusals_per_second is {options.refusals_per_second}; 0 or more, 0: none"
        raise StackError(msg)
    return RequestLog(options)
