"""Contention on a real model: a long prompt among streams, and a shared prompt prefix.

    python -m benchmarks.contention interference [--schedulers chunked,prefill-first]
    python -m benchmarks.contention prefix [--allocators paged,prefix-hash]

``interference``: eight requests stream; then a long prompt arrives. For each scheduler: the
gaps between a stream's tokens that overlap the prompt's computation, and the time to the
prompt's first token. ``prefix``: one warm request, then many with the same long beginning,
one after another; then all at once on a cold cache. For each allocator: prompt positions
computed and time to the first token.
"""

import argparse
import itertools
import json
import platform
import statistics
import threading
import time

from enginebay.assembly import assemble
from enginebay.config import load_stack
from enginebay.flow import Delta, Ended, Request, SamplingParams, TokenPrompt

WORDS = range(1000, 6000)
"""Token ids that prompts are made of."""


def main() -> None:
    """Measure and print, a JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("interference", "prefix"))
    parser.add_argument("--stack", default="cpu")
    parser.add_argument("--model", default="")
    parser.add_argument("--schedulers", default="chunked,prefill-first")
    parser.add_argument("--allocators", default="paged,prefix-hash")
    parser.add_argument("--long", type=int, default=4000, help="tokens of the long prompt")
    parser.add_argument("--shared", type=int, default=1000, help="tokens of the shared prefix")
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(json.dumps({"cpu": platform.processor() or platform.machine(), **vars(options)}))
    measure = {"interference": _interference, "prefix": _prefix}[options.what]
    measure(options)


class Served:
    """An engine of one stack, with the times of everything that it says."""

    def __init__(self, options: argparse.Namespace, **overrides: object) -> None:
        changes = {"engine.model": options.model} if options.model else {}
        stack = load_stack(options.stack, {**changes, **overrides})
        self.assembly = assemble(stack.without("transports", "sinks"))
        self.engine = self.assembly.engine
        self.tokens: dict[str, list[float]] = {}
        """When each request's tokens were there, seconds."""
        self.computed = 0
        """Prompt positions computed."""
        self._ended: dict[str, threading.Event] = {}
        self._numbers = itertools.count()
        self.engine.watch.observers.append(("benchmark", self))
        self.assembly.client.events(self._listen)
        self.engine.start()

    def submit(self, token_ids: tuple[int, ...], max_tokens: int) -> str:
        """Put a request in. :return: its id"""
        name = f"r{next(self._numbers)}"
        self.tokens[name], self._ended[name] = [], threading.Event()
        sampling = SamplingParams(
            max_tokens=max_tokens, ignore_eos=True, seed=0, transforms={"temperature": 0.0}
        )
        prompt = TokenPrompt(token_ids=token_ids)
        self.assembly.client.submit(Request(id=name, prompt=prompt, sampling=sampling))
        return name

    def wait(self, *names: str) -> None:
        """Until requests have ended."""
        for name in names:
            self._ended[name].wait()

    def first(self, name: str) -> float:
        """When a request's first token is there; waits for it."""
        while not self.tokens[name]:
            time.sleep(0.001)
        return self.tokens[name][0]

    def close(self) -> None:
        """Stop the engine."""
        self.assembly.client.drain(10.0)

    def _listen(self, batch) -> None:
        now = time.monotonic()
        for event in batch.events:
            if isinstance(event, Delta):
                self.tokens[event.request_id] += [now] * len(event.token_ids)
            elif isinstance(event, Ended):
                self._ended[event.request_id].set()

    def on_step(self, record) -> None:
        """Count what was computed."""
        self.computed += record.num_prefill_tokens

    def on_request(self, record) -> None:
        """Not needed."""

    def on_refusal(self, refusal) -> None:
        """:raises RuntimeError: a benchmark must not be refused"""
        raise RuntimeError(refusal.message)

    def render(self) -> str:
        """Nothing for metrics."""
        return ""


def prompt_of(seed: int, length: int) -> tuple[int, ...]:
    """A prompt of its own."""
    return tuple(WORDS[(seed * 7919 + place * 104729) % len(WORDS)] for place in range(length))


def _interference(options: argparse.Namespace) -> None:
    for scheduler in options.schedulers.split(","):
        served = Served(options, scheduler=scheduler, **{"engine.max_model_len": 0})
        rounds = [_long_among_streams(served, options, n) for n in range(options.rounds)]
        served.close()
        columns = {key: statistics.median(found[key] for found in rounds) for key in rounds[0]}
        print(json.dumps({"scheduler": scheduler, **{k: round(v, 4) for k, v in columns.items()}}))


def _long_among_streams(served: Served, options: argparse.Namespace, number: int) -> dict:
    streams = [served.submit(prompt_of(100 * number + n, 32), 2000) for n in range(8)]
    for name in streams:
        while len(served.tokens[name]) < 8:
            time.sleep(0.001)
    asked = time.monotonic()
    long = served.submit(prompt_of(9000 + number, options.long), 8)
    first = served.first(long)
    served.wait(long)
    time.sleep(0.2)
    for name in streams:
        served.engine.cancel(name)
    served.wait(*streams)
    gaps, quiet = [], []
    for name in streams:
        for before, after in itertools.pairwise(served.tokens[name]):
            (gaps if after > asked and before < first else quiet).append(after - before)
    cuts = statistics.quantiles(gaps, n=100) if len(gaps) > 1 else [max(gaps)] * 99
    return {
        "long_ttft_s": first - asked,
        "gap_p50_s": statistics.median(gaps),
        "gap_p99_s": cuts[98],
        "gap_max_s": max(gaps),
        "gaps": len(gaps),
        "quiet_gap_p50_s": statistics.median(quiet),
    }


def _prefix(options: argparse.Namespace) -> None:
    for allocator in options.allocators.split(","):
        served = Served(options, allocator=allocator)
        shared = prompt_of(1, options.shared)
        prompts = [shared + prompt_of(10 + n, 20) for n in range(options.requests)]
        served.wait(served.submit(shared + prompt_of(2, 20), 4))
        served.computed = 0
        delays = []
        for prompt in prompts:
            asked = time.monotonic()
            name = served.submit(prompt, 4)
            delays.append(served.first(name) - asked)
            served.wait(name)
        found = {"warm_computed": served.computed, "warm_ttft_s": statistics.median(delays)}
        cold = prompt_of(3, options.shared)
        served.computed = 0
        asked = time.monotonic()
        names = [served.submit(cold + prompt_of(500 + n, 20), 4) for n in range(options.requests)]
        served.wait(*names)
        found["cold_computed"] = served.computed
        found["cold_prefixes"] = (served.computed - 20 * options.requests) / options.shared
        found["cold_ttft_s"] = statistics.median(served.first(name) - asked for name in names)
        found["cold_all_s"] = time.monotonic() - asked
        served.close()
        print(json.dumps({"allocator": allocator, **{k: round(v, 3) for k, v in found.items()}}))


if __name__ == "__main__":
    main()
