"""Servers on loopback: enginebay's and vLLM's, asked over HTTP like any client would.

Requests go to ``/v1/completions`` with token ids, each on a connection of its own, all at
once; the answer comes whole, or as a stream where the first token's time is wanted.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import packages_distributions, version

from benchmarks.peers.parent import end_with_parent

from . import Facts, Mark, Setup

PATIENCE = 500.0
"""Seconds to be ready in: vLLM compiles at its first start."""
SERVED = "served"
"""The model's name for callers."""


class Engine:
    """One server, a child of this process, and a client in it."""

    def __init__(self, setup: Setup) -> None:
        """:raises RuntimeError: the server ended, or was not ready in time"""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        command, ready, self.facts = COMMANDS[setup.variant.split(":")[0]](setup, self._port)
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command], stdin=subprocess.DEVNULL, preexec_fn=end_with_parent
        )
        self._wait(ready)
        self._pool = ThreadPoolExecutor(setup.most)

    def generate(self, prompts: list[list[int]], tokens: int, mark: Mark | None) -> list[list[int]]:
        """Continue all prompts at once."""
        if mark is not None:
            return [self._stream(prompts[0], tokens, mark)]
        asked = [self._pool.submit(self._whole, prompt, tokens) for prompt in prompts]
        return [each.result() for each in asked]

    def _whole(self, prompt: list[int], tokens: int) -> list[int]:
        answer = json.loads(self._post(prompt, tokens, stream=False).read())
        return list(answer["choices"][0]["token_ids"])

    def _stream(self, prompt: list[int], tokens: int, mark: Mark) -> list[int]:
        ids: list[int] = []
        for line in self._post(prompt, tokens, stream=True):
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    ids.extend(choice.get("token_ids") or ())
                    if ids:
                        mark(len(ids))
        return ids

    def _post(self, prompt: list[int], tokens: int, *, stream: bool) -> http.client.HTTPResponse:
        """:raises RuntimeError: the server refused; with its words"""
        body = {
            "model": SERVED,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": stream,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        headers = {"content-type": "application/json", "connection": "close"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"HTTP {answer.status}: {answer.read(500).decode()}")
        return answer

    def _wait(self, ready: str) -> None:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with status {self._process.returncode}")
            connection = http.client.HTTPConnection("127.0.0.1", self._port)
            try:
                connection.request("GET", ready)
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass  # nobody listens yet
            finally:
                connection.close()
            time.sleep(0.2)
        raise RuntimeError(f"the server was not ready within {PATIENCE:g} s")


Command = tuple[list[str], str, Facts]
"""Module and arguments; the path that tells it is ready; what is known of it."""


def _enginebay(setup: Setup, port: int) -> Command:
    from enginebay.config import load_stack

    name = setup.variant.partition(":")[2]
    stack = load_stack(name)
    quant, dtype = stack.one("quant").use, stack.engine.dtype
    plain = quant == "none"
    bits = dtype if plain else "4-bit" if "int4" in quant else "8-bit"
    changes = (f"engine.threads={setup.threads}", 'allocator="paged"')
    return (
        [
            *f"enginebay serve --host 127.0.0.1 --port {port} --log-level warning".split(),
            *("--stack", name, "--model", setup.weights, "--served-name", SERVED),
            *(part for change in changes for part in ("--set", change)),
        ],
        "/ready",
        Facts(version("enginebay"), dtype if plain else quant, "", bits, setup.threads),
    )


def _vllm(setup: Setup, port: int) -> Command:
    cores = sorted(os.sched_getaffinity(0))[: setup.threads]
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    installed = version(packages_distributions()["vllm"][0])
    return (
        [
            *f"vllm.entrypoints.openai.api_server --host 127.0.0.1 --port {port}".split(),
            *f"--dtype float32 --no-enable-prefix-caching --max-num-seqs {setup.most}".split(),
            *f"--max-model-len {setup.longest} --disable-log-stats".split(),
            *("--model", setup.weights, "--served-model-name", SERVED),
        ],
        "/health",
        Facts(installed, "float32", "float32", "float32", setup.threads),
    )


COMMANDS: dict[str, Callable[[Setup, int], Command]] = {"enginebay": _enginebay, "vllm": _vllm}
"""How each server is started."""
