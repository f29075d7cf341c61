"""What every scheduler must do. Each check takes ``make(limits)``.

The engine's own roster, builder, rescue and commit run over the paged allocator and an
executor without a model, in virtual time. Requests that must be treated alike differ
in nothing but tenant and arrival, so a policy may order by anything else it likes.
"""

from collections.abc import Callable
from typing import Final

from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import Scheduler
from enginebay.sequence import State

from .check import CheckList, require
from .effort import CountedScheduler, Effort
from .harness import Harness
from .idle_watch import IdleWatch
from .scheduler_memory_checks import SCHEDULER_MEMORY_CHECKS
from .scheduler_progress_checks import SCHEDULER_PROGRESS_CHECKS
from .traffic import Arrival, Happening, request_of
from .worlds import limits_of, random_world, require_all_well

MakeScheduler = Callable[[Limits], Scheduler]
SCHEDULER_CHECKS: Final = CheckList()
SEEDS: Final = (0, 1, 4, 20, 37)
MAX_OVERTAKES: Final = 64
"""Later requests, equal but for the tenant, that may begin before an earlier one."""
MAX_GROWTH: Final = 3.0
"""How much more a step may cost with a hundred times as many waiting."""


@SCHEDULER_CHECKS.add("scheduler/ends-once")
def every_request_ends_once(make: MakeScheduler) -> None:
    """Whatever arrives and leaves, each request ends once, and rightly."""
    for seed in SEEDS:
        world = random_world(seed)
        harness = Harness(make, world.limits)
        harness.play(world.happenings)
        require_all_well(harness, "scheduler/ends-once")


@SCHEDULER_CHECKS.add("scheduler/two-in-flight")
def plans_ahead(make: MakeScheduler) -> None:
    """With two plans in flight nothing is planned twice, lost or preempted under way."""
    for seed in SEEDS[:3]:
        world = random_world(seed)
        harness = Harness(make, world.limits, depth=2)
        harness.play(world.happenings)
        require_all_well(harness, "scheduler/two-in-flight")


@SCHEDULER_CHECKS.add("scheduler/holds-all")
def nothing_is_lost_in_the_queue(make: MakeScheduler) -> None:
    """``num_waiting`` is what was added and neither started nor removed, every turn."""
    for seed in SEEDS[:3]:
        world = random_world(seed)
        harness = Harness(make, world.limits)
        harness.play(world.happenings, each_turn=lambda: _check_queue(harness))  # noqa: B023


@SCHEDULER_CHECKS.add("scheduler/work-conserving")
def work_is_not_held_back(make: MakeScheduler) -> None:
    """Nothing waits for longer than the patience while it could be computed."""
    for seed in SEEDS:
        world = random_world(seed)
        harness = Harness(make, world.limits)
        idle = IdleWatch(harness)
        harness.play(world.happenings, each_turn=idle.look)


@SCHEDULER_CHECKS.add("scheduler/budgets")
def tight_budgets_are_lived_with(make: MakeScheduler) -> None:
    """One token a step, one seat, a pool for one: everybody ends all the same."""
    for limits in (
        limits_of(max_step_tokens=1),
        limits_of(max_sequences=1),
        limits_of(num_blocks=6, max_model_len=24),
        limits_of(max_step_tokens=1, max_sequences=1, num_blocks=6, max_model_len=24),
    ):
        harness = Harness(make, limits)
        for number in range(7):
            harness.submit(request_of(f"r{number}", num_prompt=5 + number, max_tokens=9))
        harness.finish(max_turns=5000)
        require_all_well(harness, "scheduler/budgets")


@SCHEDULER_CHECKS.add("scheduler/no-starvation")
def equals_wait_alike(make: MakeScheduler) -> None:
    """Under lasting overload no request is overtaken by more than 64 later equals.

    Requests come more than twice as fast as they can be served; one tenant's alone
    would keep the engine busy.
    """
    harness = Harness(make, limits_of(max_sequences=4))
    happenings: list[Happening] = []
    for number in range(320):
        tenant = "lonely" if number in (0, 30, 31) else ("many", "more")[number % 2]
        request = request_of(f"r{number:03}", num_prompt=12, max_tokens=6, tenant=tenant)
        happenings.append(Arrival(number * 0.0025, request))
    harness.play(happenings)
    require_all_well(harness, "scheduler/no-starvation")
    begun = [harness.answers.of[f"r{number:03}"].first_token_at for number in range(320)]
    for number, moment in enumerate(begun):
        overtakes = sum(later < moment for later in begun[number + 1 :] if later and moment)
        told = f"request {number} was overtaken by {overtakes} later ones"
        require(overtakes <= MAX_OVERTAKES, "scheduler/no-starvation", told)


@SCHEDULER_CHECKS.add("scheduler/remove-waiting")
def removed_while_waiting(make: MakeScheduler) -> None:
    """A request that leaves the queue is never named again, and nobody else is harmed."""
    for victims in ((0,), (3, 4), (9,), tuple(range(2, 10)), (5, 0, 9)):
        harness = Harness(make, limits_of(max_sequences=2))
        for number in range(10):
            harness.submit(request_of(f"r{number}", num_prompt=9, max_tokens=5))
        harness.turn()
        for number in victims:
            harness.cancel(f"r{number}")
        harness.finish()
        require_all_well(harness, "scheduler/remove-waiting")


@SCHEDULER_CHECKS.add("scheduler/remove-running")
def removed_while_running(make: MakeScheduler) -> None:
    """A request may leave at any step: in the middle of its prompt or of its answer."""
    for step in range(1, 14, 2):
        harness = Harness(make, limits_of(max_sequences=3, max_step_tokens=8))
        for number in range(6):
            harness.submit(request_of(f"r{number}", num_prompt=13, max_tokens=5))
        for _ in range(step):
            harness.turn()
        for sequence in list(harness.roster.seats.values()):
            harness.cancel(sequence.request_id)
        harness.finish()
        require_all_well(harness, "scheduler/remove-running")


@SCHEDULER_CHECKS.add("scheduler/preempted-return")
def preempted_sequences_come_back(make: MakeScheduler) -> None:
    """Those that lost their blocks, to the policy or to the core, end like the others."""
    harness = Harness(make, limits_of(num_blocks=16, max_model_len=60))
    for number in range(8):
        harness.submit(request_of(f"r{number}", num_prompt=6, max_tokens=40))
    idle = IdleWatch(harness)
    harness.play(each_turn=idle.look)
    require_all_well(harness, "scheduler/preempted-return")


@SCHEDULER_CHECKS.add("scheduler/choices")
def choices_are_scheduled(make: MakeScheduler) -> None:
    """All choices of a request are scheduled, though only the first queues at once."""
    harness = Harness(make, limits_of(max_sequences=4))
    for number in range(4):
        harness.submit(request_of(f"r{number}", num_prompt=11, max_tokens=7, n=5))
    harness.finish()
    require_all_well(harness, "scheduler/choices")


@SCHEDULER_CHECKS.add("scheduler/cost")
def steps_do_not_cost_more_the_more_wait(make: MakeScheduler) -> None:
    """A step's cost grows with what is scheduled: 100 times the queue, 3 times at most."""
    few, many = (_effort_of_steps(make, num_waiting) for num_waiting in (25, 2500))
    told = f"{few} reads and lines with 25 waiting, {many} with 2500"
    require(many <= MAX_GROWTH * few, "scheduler/cost", told)


SCHEDULER_CHECKS.extend([*SCHEDULER_MEMORY_CHECKS, *SCHEDULER_PROGRESS_CHECKS])


def _check_queue(harness: Harness) -> None:
    waiting = [
        sequence.id
        for sequence in harness.roster.sequences.values()
        if sequence.state is State.WAITING
        and sequence not in sequence.group.deferred
        and sequence.id not in harness.roster.parked
    ]
    counted = harness.scheduler.num_waiting()
    told = f"the scheduler counts {counted} waiting, the engine gave it {len(waiting)}"
    require(counted == len(waiting), "scheduler/holds-all", told)
    harness.scheduler.check_integrity()


def _effort_of_steps(make: MakeScheduler, num_waiting: int) -> int:
    """What ten steps cost with so many waiting behind a full engine."""
    effort = Effort()
    limits = limits_of(max_sequences=8, num_blocks=200)
    harness = Harness(lambda given: CountedScheduler(make(given), effort), limits, verify=False)
    for number in range(num_waiting):
        harness.submit(request_of(f"r{number}", num_prompt=6, max_tokens=3))
    harness.turn()
    effort.reset()
    for number in range(10):
        harness.submit(request_of(f"more{number}", num_prompt=6, max_tokens=3))
        if number % 3 == 0:
            harness.cancel(f"r{num_waiting - 1 - number}")
        harness.turn()
    return effort.total
