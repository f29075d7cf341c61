"""What every scheduler must do for those whom others could push aside for ever.

Each check takes ``make(limits)``, as those of ``scheduler_checks``.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import Scheduler

from .check import CheckList, require
from .harness import Harness
from .traffic import Arrival, Happening, request_of
from .worlds import limits_of, require_all_well

MakeScheduler = Callable[[Limits], Scheduler]
SCHEDULER_PROGRESS_CHECKS: Final = CheckList()
MAX_GAP_STEPS: Final = 128
"""Steps between two tokens of an answer, at most, while others arrive."""
MAX_WAIT_SECONDS: Final = 120.0
"""How long the least important request may wait for its first token under a load that
would keep the engine busy by itself. Policies that age must have aged it by then."""


@SCHEDULER_PROGRESS_CHECKS.add("scheduler/goes-on")
def answers_go_on(make: MakeScheduler) -> None:
    """An answer that began gets on, however many prompts arrive meanwhile: at most 128
    steps lie between two of its tokens."""
    harness = Harness(make, limits_of(max_sequences=4, max_step_tokens=16))
    answer = request_of("answer", num_prompt=8, max_tokens=12, tenant="lonely")
    happenings: list[Happening] = [Arrival(0.0, answer)]
    for number in range(320):
        request = request_of(f"r{number}", num_prompt=12, max_tokens=1, tenant="many")
        happenings.append(Arrival(number * 0.002, request))
    steps: list[int] = []

    def look() -> None:
        tokens = harness.answers.of["answer"].num_tokens
        steps.extend([harness.audit.num_plans] * (tokens - len(steps)))

    harness.play(happenings, each_turn=look)
    require_all_well(harness, "scheduler/goes-on")
    gap = max(later - sooner for sooner, later in pairwise(steps))
    told = f"an answer stood still for {gap} steps while prompts arrived"
    require(gap <= MAX_GAP_STEPS, "scheduler/goes-on", told)


@SCHEDULER_PROGRESS_CHECKS.add("scheduler/no-starved-class")
def every_class_progresses(make: MakeScheduler) -> None:
    """A request of a lower class, and one that has no deadline, begin within 120 seconds
    though better ones arrive twice as fast as they can be served."""
    _require_progress(make, "a lower class", flood={}, lonely={"priority": 1})
    _require_progress(make, "no deadline", flood={"deadline": 40.0}, lonely={})


def _require_progress(
    make: MakeScheduler, what: str, *, flood: dict[str, Any], lonely: dict[str, Any]
) -> None:
    """A step takes a second and serves one request; two come in each."""
    harness = Harness(make, limits_of(max_sequences=1), cost=lambda plan: 1.0)
    first = request_of("lonely", num_prompt=6, max_tokens=1, **lonely)
    happenings: list[Happening] = [Arrival(1.1, first)]
    for number in range(int(2 * MAX_WAIT_SECONDS) + 40):
        request = request_of(f"r{number}", num_prompt=6, max_tokens=1, **flood)
        happenings.append(Arrival(number / 2, request))
    harness.play(happenings)
    begun = harness.answers.of["lonely"].first_token_at or float("inf")
    told = f"a request of {what} began after {begun - 1.1:.0f} s under a lasting load"
    require(begun - 1.1 <= MAX_WAIT_SECONDS, "scheduler/no-starved-class", told)
