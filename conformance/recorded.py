"""A harness that keeps what each step computed, by name: for looking at a policy's order."""

from collections.abc import Callable
from typing import Any

from enginebay.flow import StepPlan
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import Scheduler

from .harness import Harness
from .hash_model import Pending
from .traffic import request_of


class Recorded(Harness):
    """An engine whose plans can be read afterwards."""

    def __init__(
        self, make_scheduler: Callable[[Limits], Scheduler], limits: Limits, **settings: Any
    ) -> None:
        super().__init__(make_scheduler, limits, **settings)
        self.plans: list[list[tuple[str, int]]] = []
        """Of each step: who computed how many positions."""
        self.began: list[float] = []
        """When each step was handed to the executor, in seconds."""
        self.token_times: dict[str, list[float]] = {}
        """When each token of a request was there, in seconds."""
        self._names: dict[int, str] = {}
        self._execute = self.executor.execute
        self.executor.execute = self._recorded  # type: ignore[method-assign]

    def come(self, name: str, num_prompt: int, max_tokens: int, **fields: Any) -> None:
        """Submit; each arrives a little later than the one before."""
        self.clock.wait_until(self.clock() + 1e-6)
        self.submit(request_of(name, num_prompt=num_prompt, max_tokens=max_tokens, **fields))

    def waits(self, name: str) -> list[str]:
        """Why a request waited, in order, from its timeline."""
        events = self.intake.timeline.of(name)
        return [str(event.get("reason")) for event in events if event["what"] == "waiting"]

    def turn(self) -> bool:
        """One turn; notes the tokens that came of it."""
        before = {name: answer.num_tokens for name, answer in self.answers.of.items()}
        computing = super().turn()
        for name, answer in self.answers.of.items():
            count = answer.num_tokens - before.get(name, 0)
            self.token_times.setdefault(name, []).extend([self.clock()] * count)
        return computing

    def _recorded(self, plan: StepPlan) -> Pending:
        self._names.update((start.sequence_id, start.request_id) for start in plan.started)
        self.plans.append([(self._names[s.sequence_id], s.num_tokens) for s in plan.spans])
        self.began.append(self.clock())
        return self._execute(plan)
