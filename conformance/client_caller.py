"""A caller of a client: submits, listens, reads and waits, as a transport does."""

import time

from enginebay.flow import Accepted, Request, SamplingParams, TokenPrompt, Written
from enginebay.hookspecs.client import EngineClient

from .answers import Answer, Answers
from .check import require
from .client_stage import Stage


class Caller:
    """One client with a listener, as a transport would use it."""

    def __init__(self, stage: Stage, client: EngineClient | None = None) -> None:
        self.stage = stage
        self.client = client or stage.client
        self.answers = Answers()
        self.client.events(self.answers)

    def submit(self, name: str, num_prompt: int = 6, max_tokens: int = 5, n: int = 1,
               window: int = 0, seed: int | None = 7) -> Accepted:  # fmt: skip
        """Put in a request that ends by its length alone."""
        request = plain_request(name, num_prompt, max_tokens, n, window, seed)
        answer = self.answers.expect(request)
        answer.accepted = self.client.submit(request)
        return answer.accepted

    def ended(self, *names: str) -> list[Answer]:
        """Wait for the ends of requests.

        :raises Broken: they did not come, or an event broke a rule
        """
        there = self.answers.wait(names, self.stage.patience)
        late = [name for name in names if self.answers.of[name].ended is None]
        require(there, "client/one-end", f"no Ended for {late} in {self.stage.patience:g} s")
        return [self.answers.of[name] for name in names]

    def has(self, num_tokens: int, *names: str) -> bool:
        """Wait until requests have so many tokens or have ended; False: too late."""
        return self.answers.wait(names, self.stage.patience, tokens=num_tokens)

    def read(self, name: str, num_tokens: int) -> None:
        """Acknowledge tokens."""
        now = time.monotonic()
        self.client.acknowledge(
            (Written(request_id=name, index=0, num_tokens=num_tokens, time=now),)
        )

    def quiet(self, clause: str) -> None:
        """Nobody runs, nothing is held, and no event comes any more."""
        until = time.monotonic() + self.stage.patience
        counts = _counts(self.client)
        while any(counts) and time.monotonic() < until:
            time.sleep(0.002)
            counts = _counts(self.client)
        told = "{} run, {} wait, {} blocks are used after the last Ended".format(*counts)
        require(not any(counts), clause, told)
        self.answers.check()

    def close(self) -> None:
        """Let the engine go."""
        self.client.drain(0.0)
        self.answers.check()


def plain_request(
    name: str, num_prompt: int, max_tokens: int, n: int = 1, window: int = 0, seed: int | None = 7
) -> Request:
    """Token ids that any vocabulary has."""
    return Request(
        id=name,
        prompt=TokenPrompt(token_ids=tuple(3 + (5 * place) % 60 for place in range(num_prompt))),
        sampling=SamplingParams(max_tokens=max_tokens, n=n, seed=seed, ignore_eos=True),
        window=window,
    )


def _counts(client: EngineClient) -> tuple[int, int, int]:
    snapshot = client.snapshot()
    return snapshot.num_running, snapshot.num_waiting, snapshot.num_used_blocks
