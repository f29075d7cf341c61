"""What a step costs besides its kernels: Python, by phase.

    python -m benchmarks.overhead [--running 1,4,16,64] [--sampling greedy,random] [--http]

The stack's own parts run: scheduler, allocator, tokenizer, detokenizer, sampler chain,
observers. Only the decoder is imagined: it answers at once, or after ``--forward``
milliseconds in which it holds no lock, with rows of logits that the model itself gave to
other prompts. With ``--http`` the streams are server-sent events, read by a process of
its own.

A row of the table is the median over all steps in which nothing but decoding happened, in
microseconds of the step thread's own CPU time, which a busy machine does not lengthen.
``wall`` is the whole step without the decoder by the clock, so it holds the time in which
the step thread waited for the interpreter's lock or for a core; ``row`` is ``step`` for
each running sequence. With ``--forward`` other programs empty the caches meanwhile, as a
model's weights do.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import threading
import time

import torch

from enginebay.assembly import Assembly, assemble
from enginebay.config import load_stack
from enginebay.flow import (
    Ended,
    Request,
    SamplingParams,
    SequenceStart,
    Span,
    StepPlan,
    TokenPrompt,
)
from enginebay.serving import serve

PHASES = ("schedule", "batch", "forward", "sample", "commit", "detokenize", "emit", "rest")
SAMPLING = {
    "greedy": {"temperature": 0.0},
    "random": {"temperature": 0.8},
    "top-p": {"temperature": 0.8, "top_p": 0.9},
    "top-k": {"temperature": 0.8, "top_k": 40},
}
PROMPT = 64
"""Tokens of each prompt."""
ROWS = 64
"""Different rows of logits that the imagined decoder goes through."""

READER = """
import asyncio, json, sys
async def read(body):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    head = "POST /v1/completions HTTP/1.1\\r\\nhost: x\\r\\ncontent-type: application/json\\r\\n"
    writer.write(f"{head}content-length: {len(body)}\\r\\n\\r\\n".encode() + body)
    while not (data := await reader.read(65536)).endswith(b"0\\r\\n\\r\\n"):
        assert data, "the stream broke off"
async def main():
    bodies = [json.dumps(each).encode() for each in json.load(sys.stdin)]
    await asyncio.gather(*map(read, bodies))
asyncio.run(main())
"""


def main() -> None:
    """Measure and print a line for each number of sequences and way to sample."""
    options = _options()
    changes = {"engine.model": options.model} if options.model else {}
    changes |= {"engine.max_sequences": max(options.running)}
    changes |= {"options.transports.http.port": 0} if options.http else {}
    stack = load_stack(options.stack, changes)
    if options.http:
        serving = serve(stack)
        assembly, port = serving.assembly, serving.transports[0].port
    else:
        assembly, port = assemble(stack.without("transports", "sinks")), 0
    imagined = Imagined(assembly, options.forward)
    watch = Stopwatch(assembly)
    if not options.http:
        assembly.engine.start()
    ended = Ends(assembly) if not options.http else None
    print("microseconds a step; " + ("HTTP streams" if options.http else "in process"))
    print(f"{'':<12}" + "".join(f"{name:>11}" for name in (*PHASES, "step", "wall", "row")))
    for name in options.sampling:
        for running in options.running:
            imagined.reset()
            watch.begin(running)
            if ended is None:
                _stream(port, running, options.steps, SAMPLING[name])
            else:
                ended.play(running, options.steps, SAMPLING[name])
            print(f"{name:<8}{running:>4}" + watch.line(running), flush=True)
    assembly.client.drain(5.0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = lambda text: [int(each) for each in text.split(",")]  # noqa: E731
    parser.add_argument("--running", type=numbers, default=[1, 4, 16, 64])
    parser.add_argument("--sampling", type=lambda t: t.split(","), default=list(SAMPLING))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--forward", type=float, default=0.0, help="milliseconds of the decoder")
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--stack", default="cpu")
    parser.add_argument("--model", default="")
    return parser.parse_args()


class Imagined:
    """A decoder that computes nothing, in place of the runner's."""

    def __init__(self, assembly: Assembly, milliseconds: float) -> None:
        self._seconds = milliseconds / 1000
        self._step = 0
        runner = assembly.executor.runner
        self._rows = _known_rows(assembly)
        self._written = torch.empty_like(self._rows[:ROWS])
        runner.decoder = self

    def reset(self) -> None:
        """Begin with the same rows again."""
        self._step = 0

    def forward(self, batch, attention) -> torch.Tensor:
        """Known logits [len(batch.logit_rows), vocab_size], other ones each step."""
        if self._seconds:
            time.sleep(self._seconds)
        count = batch.logit_rows.shape[0]
        self._step += 1
        first = self._step % (len(self._rows) - count + 1)
        # A model would have written them just now: they are in the processor's caches.
        return self._written[:count].copy_(self._rows[first : first + count])


def _known_rows(assembly: Assembly) -> torch.Tensor:
    """What the model says to ROWS prompts, and the same again: float32 [2 * ROWS, V]."""
    size, length = assembly.limits.block_size, 8
    width = -(-length // size)
    rows = []
    for first in range(0, ROWS, 16):
        numbers = range(first, first + 16)
        plan = StepPlan(
            step=-1,
            started=tuple(_start(number, length) for number in numbers),
            spans=tuple(
                Span(
                    sequence_id=-1 - number,
                    start=0,
                    num_tokens=length,
                    logits_from=length - 1,
                    table=tuple(range(place * width, (place + 1) * width)),
                )
                for place, number in enumerate(numbers)
            ),
        )
        runner = assembly.executor.runner
        runner.tap = lambda plan, logits: rows.append(logits.float().clone())
        runner.run(plan)
        runner.tap = None
        runner.rows.clear()
    known = torch.cat(rows)
    return torch.cat([known, known])


def _start(number: int, length: int) -> SequenceStart:
    ids = tuple(1000 + (number * 7919 + place * 104_729) % 5000 for place in range(length))
    return SequenceStart(
        sequence_id=-1 - number,
        request_id="rows",
        index=0,
        token_ids=ids,
        num_prompt=length,
        sampling=SamplingParams(transforms={"temperature": 0.0}),
        seed=0,
    )


class Stopwatch:
    """CPU time of the step thread by phase, of the steps that only decode."""

    def __init__(self, assembly: Assembly) -> None:
        engine, runner = assembly.engine, assembly.executor.runner
        self._spent = dict.fromkeys(("forward_wall", *PHASES), 0.0)
        self._steps: list[dict[str, float]] = []
        self._running = 0
        self._plan = None
        self._forward, self._decoder = None, runner.decoder
        for owner, method, phase in (
            (engine, "_plan", "schedule"),
            (runner, "_apply", "batch"),
            (runner._batches, "make", "batch"),  # noqa: SLF001
            (runner.decoder, "forward", "forward"),
            (runner, "_outputs", "sample"),
            (engine, "_commit", "commit"),
            (engine, "_emit", "emit"),
            (engine.roster._commit, "_feed", "detokenize"),  # noqa: SLF001
        ):
            setattr(owner, method, self._timed(getattr(owner, method), phase))
        self._cost = self._calibrated()
        engine.step = self._whole(engine.step)

    def begin(self, running: int) -> None:
        """Count from here on, steps of so many sequences."""
        self._running = running
        self._steps.clear()

    def line(self, running: int) -> str:
        """The medians."""
        steps = self._steps
        columns = [statistics.median(step[name] for step in steps) for name in PHASES]
        columns += [statistics.median(step[name] for step in steps) for name in ("step", "wall")]
        columns.append(columns[-2] / running)
        return "".join(f"{1e6 * column:>11.1f}" for column in columns)

    def _timed(self, call, phase: str):
        spent, clock, wall = self._spent, time.thread_time, time.perf_counter

        def timed(*arguments, **named):
            began = clock()
            began_wall = wall() if phase == "forward" else 0.0
            try:
                return call(*arguments, **named)
            finally:
                spent[phase] += clock() - began
                if phase == "forward":
                    spent["forward_wall"] += wall() - began_wall

        return timed

    def _calibrated(self) -> float:
        """Seconds that one timed call costs beside what it times."""
        timed = self._timed(lambda: None, "rest")
        began = time.thread_time()
        for _ in range(5000):
            timed()
        return (time.thread_time() - began) / 5000

    def _whole(self, step):
        spent = self._spent

        def timed() -> bool:
            for name in spent:
                spent[name] = 0.0
            began, began_wall = time.thread_time(), time.perf_counter()
            computed = step()
            whole = time.thread_time() - began
            wall = time.perf_counter() - began_wall
            self._note(whole, wall)
            return computed

        return timed

    def _note(self, whole: float, wall: float) -> None:
        found = dict(self._spent)
        tokens = round(self._running)
        if not found["forward_wall"] or not found["detokenize"]:
            return
        found["detokenize"] -= tokens * self._cost / 2
        found["commit"] -= found["detokenize"] + tokens * self._cost
        calls = (7 + tokens) * self._cost
        found["step"] = whole - found["forward"] - calls
        found["wall"] = wall - found["forward_wall"] - calls
        named = sum(found[name] for name in PHASES if name not in ("forward", "rest"))
        found["rest"] = found["step"] - named
        self._steps.append(found)


class Ends:
    """A listener in the same process that waits for its requests' ends."""

    def __init__(self, assembly: Assembly) -> None:
        self._client = assembly.client
        self._left = 0
        self._over = threading.Event()
        self._client.events(self._listen)

    def play(self, running: int, steps: int, transforms: dict) -> None:
        """Let so many sequences run for so many steps."""
        self._left = running
        self._over.clear()
        for number in range(running):
            ids = tuple(1000 + (number * 7919 + place) % 5000 for place in range(PROMPT))
            sampling = SamplingParams(
                max_tokens=steps, ignore_eos=True, seed=number, transforms=transforms
            )
            name = f"{time.monotonic_ns()}-{number}"
            prompt = TokenPrompt(token_ids=ids)
            self._client.submit(Request(id=name, prompt=prompt, sampling=sampling))
        self._over.wait()

    def _listen(self, batch) -> None:
        for event in batch.events:
            if isinstance(event, Ended):
                self._left -= 1
                if not self._left:
                    self._over.set()


def _stream(port: int, running: int, steps: int, transforms: dict) -> None:
    """The same through the server; the streams' reader is another process."""
    bodies = []
    for number in range(running):
        ids = [1000 + (number * 7919 + place) % 5000 for place in range(PROMPT)]
        body = {"model": "x", "prompt": ids, "max_tokens": steps, "ignore_eos": True}
        bodies.append({**body, "stream": True, "seed": number, **transforms})
    name = _model(port)
    text = json.dumps([{**body, "model": name} for body in bodies])
    subprocess.run(
        [sys.executable, "-c", READER, str(port)], input=text.encode(), check=True, timeout=300
    )


def _model(port: int) -> str:
    """What the server calls its model."""
    with socket.create_connection(("127.0.0.1", port)) as asked:
        asked.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: asked.recv(65536), b""))
    return json.loads(answer.split(b"\r\n\r\n", 1)[1])["data"][0]["id"]


if __name__ == "__main__":
    main()
