"""A lobby: one admission member before an imagined engine that serves whom it lets in."""

import random
from collections.abc import Callable
from typing import Any, Final

from enginebay.flow import Refusal, Usage
from enginebay.hookspecs.admission import Admission, AdmissionContext, Ask, Load, Settling
from enginebay.hookspecs.model import Limits

MakeAdmission = Callable[[AdmissionContext], Admission]
NAME: Final = "member"
LIMITS: Final = Limits(
    max_model_len=256,
    max_step_tokens=64,
    max_sequences=4,
    block_size=16,
    num_blocks=256,
    vocab_size=97,
)
CONTEXT: Final = AdmissionContext(name=NAME, limits=LIMITS, longest_token=8)
HOUR: Final = 3600.0
"""Seconds after which whatever is counted by time has been forgotten."""
MOST: Final = 3000
"""Heavy requests in a row that a member may let in without bounding anything."""


class Lobby:
    """Asks a member about requests and keeps the load true to what it answered."""

    def __init__(self, make: MakeAdmission, context: AdmissionContext = CONTEXT) -> None:
        self.member = make(context)
        self.limits = context.limits
        self.now = 1000.0
        self.held: dict[str, Ask] = {}
        """Requests let in that have not ended, oldest first."""
        self._choices = 0
        self._tokens = 0

    def load(self) -> Load:
        """Who was let in first has a seat; the engine ends two requests a second."""
        limits, waiting = self.limits, max(self._choices - self.limits.max_sequences, 0)
        used = self._tokens // limits.block_size
        return Load(
            now=self.now,
            num_waiting=waiting,
            num_running=self._choices - waiting,
            waiting_tokens=self._tokens * waiting // max(self._choices, 1),
            num_free_blocks=max(limits.num_blocks - used, 0),
            num_blocks=limits.num_blocks,
            requests_per_second=2.0,
            num_seats=limits.max_sequences,
            prompt_tokens_per_second=100.0,
            generated_tokens_per_second=100.0,
        )

    def light(self, name: str, tenant: str = "t", **facts: Any) -> Ask:
        """A request that no bound is meant for, arriving now."""
        usual: dict[str, Any] = {"n": 1, "num_prompt_tokens": 4, "max_tokens": 4}
        return Ask(request_id=name, tenant=tenant, arrival=self.now, **usual | facts)

    def heavy(self, name: str, tenant: str = "t") -> Ask:
        """A retry with a deadline, of many choices: whatever is bounded, it takes some."""
        return self.light(
            name,
            tenant,
            n=8,
            num_prompt_tokens=50,
            prompt_chars=200,
            max_tokens=200,
            attempt=1,
            deadline=30.0,
        )

    def monsters(self) -> list[Ask]:
        """Requests that are too much in one way each."""
        return [
            self.light("long", num_prompt_tokens=10 * LIMITS.max_model_len, prompt_chars=10_000),
            self.light("open", max_tokens=None),
            self.light("large", max_tokens=10**9),
            self.light("many", n=10_000, max_tokens=200),
            self.light("late", deadline=1e-9),
            self.light("stubborn", attempt=1000),
        ]

    def ask(self, ask: Ask) -> Refusal | None:
        """Ask for one; it is held when it is let in."""
        answer = self.member.ask(ask, self.load())
        if answer is None:
            self.held[ask.request_id] = ask
            self._count(ask, 1)
        return answer

    def end(self, name: str) -> None:
        """One that was let in ends after all its tokens."""
        ask = self.held.pop(name)
        self._count(ask, -1)
        if isinstance(self.member, Settling):
            prompt, output = ask.num_prompt_tokens or 0, ask.n * (ask.max_tokens or 0)
            usage = Usage(prompt_tokens=prompt, completion_tokens=output)
            self.member.settle(name, usage)
        self.member.release(name)

    def empty(self) -> None:
        """Everybody ends."""
        for name in list(self.held):
            self.end(name)

    def fill(self, tenant: str = "t") -> Refusal | None:
        """Let heavy requests in until one is refused. :return: its refusal; ``None``: the
        member let in as many as it was asked for"""
        for number in range(MOST):
            refusal = self.ask(self.heavy(f"{tenant}-{self.now:g}-{number}", tenant))
            if refusal is not None:
                return refusal
        return None

    def room(self) -> int:
        """How many heavy requests it lets in from here on; they end, and an hour passes."""
        before = len(self.held)
        self.fill()
        room = len(self.held) - before
        self.empty()
        self.now += HOUR
        return room

    def _count(self, ask: Ask, sign: int) -> None:
        self._choices += sign * ask.n
        self._tokens += sign * ask.n * (ask.num_prompt_tokens or 0)


def random_day(make: MakeAdmission) -> list[Refusal | None]:
    """Answers to light and heavy requests of three tenants who come and go by chance."""
    noise, lobby = random.Random(7), Lobby(make)
    answers = []
    for number in range(400):
        lobby.now += noise.expovariate(5.0)
        kind = noise.choice((lobby.light, lobby.heavy))
        answers.append(lobby.ask(kind(f"r{number}", tenant=noise.choice("abc"))))
        if lobby.held and noise.random() < 0.3:
            lobby.end(noise.choice(list(lobby.held)))
    return answers


def weight(member: object) -> int:
    """Entries of every container that an object holds, and of theirs in turn."""
    total, seen, open_ones = 0, set(), [member]
    while open_ones:
        thing = open_ones.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, dict):
            total += len(thing)
            open_ones += [*thing.keys(), *thing.values()]
        elif isinstance(thing, list | tuple | set | frozenset) or _is_deque(thing):
            total += len(thing)  # type: ignore[arg-type]
            open_ones += list(thing)  # type: ignore[call-overload]
        elif type(thing).__module__ not in ("builtins", "_thread", "threading"):
            open_ones += [getattr(thing, name) for name in _slots(thing) if hasattr(thing, name)]
            open_ones.append(getattr(thing, "__dict__", None))
    return total


def _is_deque(thing: object) -> bool:
    return type(thing).__name__ == "deque"


def _slots(thing: object) -> list[str]:
    return [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
