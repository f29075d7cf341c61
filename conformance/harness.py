"""A whole engine without a model: the real step loop over imagined hardware and time.

    harness = Harness(lambda limits: MyScheduler(limits), limits)
    harness.submit(request_of("a", num_prompt=40, max_tokens=8))
    harness.finish()
    print(harness.answers.of["a"].ended_at, harness.clock.now)

Intake, roster, builder, rescue and commit are the engine's own; the executor is a
``HashModel``, whose tokens prove that every cache block was right. Nothing sleeps.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from enginebay.admission import AdmissionChain
from enginebay.culprit import told
from enginebay.drafting import Drafting
from enginebay.errors import EnginebayError
from enginebay.flow import Accepted, EventBatch, FinishReason, Refusal, Request, StepPlan, Written
from enginebay.hookspecs.admission import Admission
from enginebay.hookspecs.allocator import Allocator
from enginebay.hookspecs.drafter import Drafter
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.observer import Observer
from enginebay.hookspecs.scheduler import Scheduler
from enginebay.intake import Intake
from enginebay.meter import Meter
from enginebay.plugins.allocators.paged import Paged
from enginebay.timeline import Timeline
from enginebay.watch import Watch
from enginebay.wiring import wire

from .answers import Answers
from .check import require
from .clocks import Clock, VirtualClock
from .hash_model import HashModel, step_seconds
from .number_text import NoTransforms, NumberText
from .plan_audit import PlanAudit
from .traffic import EOS_ID, VOCAB_SIZE, Happening, Leaving, Writing

if TYPE_CHECKING:
    from enginebay.sampling import Chain

CLIENT: Final = 0
"""Ids of built clients begin at 1."""
MAX_TURNS: Final = 200_000


def unread(batch: EventBatch) -> None:
    """A listener that looks at nothing."""


class Harness:
    """An engine, stepped by its owner."""

    def __init__(
        self,
        make_scheduler: Callable[[Limits], Scheduler],
        limits: Limits,
        *,
        make_allocator: Callable[[int, int], Allocator] = Paged,
        clock: Clock | None = None,
        cost: Callable[[StepPlan], float] = step_seconds,
        depth: int = 1,
        verify: bool = True,
        stall_seconds: float = 30.0,
        door: Sequence[tuple[str, Admission]] = (),
        budget: Sequence[tuple[str, Admission]] = (),
        observers: Sequence[tuple[str, Observer]] = (),
        drafter: Drafter | None = None,
        num_drafts: int = 4,
        timeline: Timeline | None = None,
        lengths: Mapping[str, int] | None = None,
        swap_seconds: float = 0.0002,
        audited: bool = True,
    ) -> None:
        """:param lengths: see ``HashModel``, as for ``swap_seconds`` and ``verify``
        :param audited: hold every plan and every event against the rules
        """
        self.limits = limits
        self.clock: Clock = clock or VirtualClock()
        self.audit = PlanAudit(limits)
        self.answers = Answers()
        self.refusals: list[Refusal] = []
        self.scheduler = make_scheduler(limits)
        self.allocator = make_allocator(limits.num_blocks, limits.block_size)
        self.executor = HashModel(
            num_blocks=limits.num_blocks,
            num_swap_blocks=limits.num_swap_blocks,
            swap_seconds=swap_seconds,
            block_size=limits.block_size,
            vocab_size=VOCAB_SIZE,
            clock=self.clock,
            depth=depth,
            cost=cost,
            audit=self.audit if audited else None,
            verify=verify,
            lengths=lengths,
        )
        text = NumberText(VOCAB_SIZE)
        timeline = Timeline(capacity_requests=4096) if timeline is None else timeline
        self.meter = Meter()
        watch = Watch(observers, timeline)
        self.intake = Intake(
            door=AdmissionChain(door),
            budget=AdmissionChain(budget),
            frontends=[("numbers", text)],
            detokenizer=text,
            chain=cast("Chain", NoTransforms()),
            limits=limits,
            identity="harness",
            eos_token_ids=(EOS_ID,),
            defaults={},
            max_logprobs=20,
            timeline=timeline,
            clock=self.clock,
            load=self.meter.load,
            refused=self._refused(watch),
            released=self.meter.finished,
        )
        self.engine = wire(
            intake=self.intake,
            scheduler=self.scheduler,
            allocator=self.allocator,
            executor=self.executor,
            detokenizer=text,
            watch=watch,
            meter=self.meter,
            drafting=Drafting("drafter", drafter, num_drafts, VOCAB_SIZE) if drafter else None,
            limits=limits,
            stall_seconds=stall_seconds,
            clock=self.clock,
        )
        self.roster = self.engine.roster
        self.planned = False
        self.engine.attach(CLIENT, self.answers if audited else unread)
        self.engine.state = "ready"

    def submit(self, request: Request) -> Accepted:
        """As a client does. Errors are the engine's own; nothing is expected after one."""
        answer = self.answers.expect(request)
        try:
            answer.accepted = self.engine.submit(request, CLIENT)
        except EnginebayError:
            self.answers.forget(request.id)
            raise
        return answer.accepted

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """As a client does."""
        self.engine.cancel(request_id, reason)

    def write(self, request_id: str, num_tokens: int, index: int = 0) -> None:
        """Report a choice's first tokens as written to their reader."""
        report = Written(
            request_id=request_id, index=index, num_tokens=num_tokens, time=self.clock()
        )
        self.engine.acknowledge((report,))

    def turn(self) -> bool:
        """One turn of the step loop; a failure ends the engine, as it does in its thread.

        :return: False when there was nothing to compute; ``planned`` says whether a plan
            came out
        """
        before, computing = self.executor.num_plans, False
        try:
            computing = self.engine.step()
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001  as the engine does: any part may fail
            self.engine.fail(told(error))
        self.answers.check()
        self.planned = self.executor.num_plans > before
        return computing

    def play(
        self,
        happenings: Iterable[Happening] = (),
        *,
        each_turn: Callable[[], None] = lambda: None,
        refused: Callable[[Request, EnginebayError], None] | None = None,
        max_turns: int = MAX_TURNS,
    ) -> None:
        """Let things happen at their times and step until everything has ended.

        :param each_turn: called after every turn, to look at the engine
        :param refused: called with a request that was turned away; ``None``: its error is
            raised
        :raises Broken: it does not end within ``max_turns``
        """
        coming = deque(sorted(happenings, key=lambda happening: happening.time))
        for _ in range(max_turns):
            while coming and coming[0].time <= self.clock():
                self._happen(coming.popleft(), refused)
            if not (coming or self.engine.busy):
                return
            computing = self.turn()
            if self.engine.state == "failed":
                return
            each_turn()
            if not computing:
                self._rest(coming)
        waiting = [name for name, answer in self.answers.of.items() if answer.ended is None]
        require(False, "harness/liveness", f"{waiting[:5]} did not end in {max_turns} turns")

    def finish(self, *, max_turns: int = MAX_TURNS) -> None:
        """Step until every request has ended."""
        self.play(max_turns=max_turns)

    def _happen(
        self, happening: Happening, refused: Callable[[Request, EnginebayError], None] | None
    ) -> None:
        if isinstance(happening, Leaving):
            self.cancel(happening.request_id, happening.reason)
        elif isinstance(happening, Writing):
            self.write(happening.request_id, happening.num_tokens, happening.index)
        else:
            try:
                self.submit(happening.request)
            except EnginebayError as error:
                if refused is None:
                    raise
                refused(happening.request, error)

    def _refused(self, watch: Watch) -> Callable[[Refusal], None]:
        """Keeps each refusal, and tells observers as the engine does."""

        def tell(refusal: Refusal) -> None:
            self.refusals.append(refusal)
            watch.refused(refusal)

        return tell

    def _rest(self, coming: Sequence[Happening]) -> None:
        """Sleep as the step thread does when there is nothing to compute, but no longer
        than until something happens."""
        pause = self.roster.pause()
        moments = [] if pause is None else [self.clock() + pause]
        moments += [coming[0].time] if coming else []
        if moments:
            self.clock.wait_until(min(moments))
