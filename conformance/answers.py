"""What a client's listener is told, put together and held to the rules of events."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from enginebay.flow import (
    Accepted,
    ChoiceFinished,
    Delta,
    Ended,
    Event,
    EventBatch,
    PromptScored,
    Request,
    TokenLogprob,
)

from .check import require


@dataclass
class Answer:
    """The events of one request."""

    request: Request
    accepted: Accepted | None = None
    tokens: dict[int, list[int]] = field(default_factory=dict)
    """By choice."""
    texts: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    finished: dict[int, ChoiceFinished] = field(default_factory=dict)
    ended: Ended | None = None
    prompt: PromptScored | None = None
    first_token_at: float | None = None
    ended_at: float | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of all choices together."""
        return sum(len(tokens) for tokens in self.tokens.values())

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why each choice ended, by index."""
        return tuple(self.finished[index].reason for index in sorted(self.finished))

    def take(self, event: Event, now: float) -> None:
        """:raises Broken: the event may not come now, or says something untrue"""
        name = self.request.id
        if self.ended is not None:
            require(False, "events/last", f"{name}: {event} after its Ended")
        if isinstance(event, Ended):
            self._end(event, now)
        elif isinstance(event, PromptScored):
            require(self.prompt is None, "events/prompt", f"{name}: prompt scores came twice")
            self.prompt = event
        else:
            index, n = event.index, self.request.sampling.n
            if not 0 <= index < n:
                require(False, "events/index", f"{name}: choice {index} of {n}")
            if index in self.finished:
                require(False, "events/finished", f"{name}: choice {index} went on after its end")
            if isinstance(event, Delta):
                self._delta(event, now)
            else:
                self.finished[index] = event

    def _delta(self, event: Delta, now: float) -> None:
        tokens = self.tokens.setdefault(event.index, [])
        tokens.extend(event.token_ids)
        self.texts[event.index] = self.texts.get(event.index, "") + event.content
        if event.num_generated != len(tokens):
            told = f"num_generated is {event.num_generated} after {len(tokens)}"
            require(False, "events/count", f"{self.request.id}: {told}")
        if event.logprobs is not None:
            named = [entry.token.token_id for entry in event.logprobs]
            same = named == list(event.token_ids)
            require(same, "events/logprobs", f"{named} are not {event.token_ids}")
            self.logprobs.setdefault(event.index, []).extend(event.logprobs)
        if event.token_ids and self.first_token_at is None:
            self.first_token_at = now

    def _end(self, event: Ended, now: float) -> None:
        self.ended, self.ended_at = event, now
        missing = set(range(self.request.sampling.n)) - self.finished.keys()
        require(not missing, "events/every-choice", f"{event}: choices {missing} did not end")
        told = f"{event.usage} and {self.num_tokens} tokens"
        require(event.usage.completion_tokens == self.num_tokens, "events/usage", told)
        if self.accepted is not None:
            right = event.usage.prompt_tokens == self.accepted.num_prompt_tokens
            require(right, "events/usage", f"{event.usage} after {self.accepted}")


class Answers:
    """A listener. Safe to be called on one thread and waited for on another."""

    def __init__(self) -> None:
        self.of: dict[str, Answer] = {}
        self.batches: list[EventBatch] = []
        self.threads: set[threading.Thread] = set()
        """Those that called. Kept alive: a dead thread's identifier is given out again."""
        self.fault: AssertionError | None = None
        """The first broken rule: it is raised where somebody waits, not in the engine."""
        self._changed = threading.Condition()

    def expect(self, request: Request) -> Answer:
        """Call before the request is submitted."""
        with self._changed:
            answer = self.of[request.id] = Answer(request)
            return answer

    def forget(self, request_id: str) -> None:
        """It was not accepted: no event of it may come."""
        with self._changed:
            del self.of[request_id]

    def __call__(self, batch: EventBatch) -> None:
        """Take the events of one step."""
        with self._changed:
            self.threads.add(threading.current_thread())
            try:
                self._take(batch)
            except AssertionError as fault:
                self.fault = self.fault or fault
            self._changed.notify_all()

    def _take(self, batch: EventBatch) -> None:
        require(batch.events, "events/batch", "an empty batch")
        if self.batches:
            last = self.batches[-1]
            ordered = batch.step >= last.step and batch.time >= last.time
            told = f"step {batch.step} came after step {last.step}"
            require(ordered, "events/order", told)
        self.batches.append(batch)
        for event in batch.events:
            if event.request_id not in self.of:
                told = f"an event of {event.request_id!r}, which is not ours"
                require(False, "events/whose", told)
            self.of[event.request_id].take(event, batch.time)

    def wait(self, ids: Iterable[str], timeout: float, *, tokens: int = 0) -> bool:
        """Until the requests have ended, or have ``tokens`` tokens; False: too late.

        :raises Broken: an event broke a rule meanwhile
        """
        wanted = list(ids)
        until = time.monotonic() + timeout
        with self._changed:
            while not all(self._there(name, tokens) for name in wanted):
                if self.fault is not None:
                    raise self.fault
                if not self._changed.wait(until - time.monotonic()):
                    return False
        self.check()
        return True

    def _there(self, name: str, tokens: int) -> bool:
        answer = self.of[name]
        return answer.ended is not None or (0 < tokens <= answer.num_tokens)

    def check(self) -> None:
        """:raises Broken: an event broke a rule"""
        if self.fault is not None:
            raise self.fault
