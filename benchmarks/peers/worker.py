"""The process of one engine: loads it, then answers one JSON line for each it reads.

    python -m benchmarks.peers.worker < lines

The first line is a ``Setup``; the answer holds the engine's ``Facts``, or ``error``.
Every further line is a run: ``prompts``, ``tokens``, ``mark``. Whatever an engine prints
goes to standard error, so standard output carries answers alone.
"""

import importlib
import json
import os
import sys
import time
from dataclasses import asdict
from typing import IO, Any

from .engines import Engine, Setup
from .parent import end_with_parent


def main() -> None:
    """Serve until standard input ends, or the driver does."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    engine = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if engine is None:
                engine = load(Setup(**asked))
                _answer(answers, {"facts": asdict(engine.facts)})
            else:
                _answer(answers, run(engine, **asked))
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver leaves it out
            _answer(answers, {"error": f"{type(error).__name__}: {error}"})


def load(setup: Setup) -> Engine:
    """Import an engine's module and load the model.

    :raises ImportError: the engine is not installed here
    """
    module = importlib.import_module(f"benchmarks.peers.engines.{setup.module}")
    engine: Engine = module.Engine(setup)
    return engine


def run(engine: Engine, prompts: list[list[int]], tokens: int, mark: bool) -> dict[str, Any]:
    """One timed run.

    :return: ``outputs``, ``seconds`` and, if asked for, ``first``: how many tokens came
        first and after how many seconds
    """
    first: list[tuple[int, float]] = []

    def note(count: int) -> None:
        if not first:
            first.append((count, time.perf_counter() - began))

    began = time.perf_counter()
    outputs = engine.generate(prompts, tokens, note if mark else None)
    seconds = time.perf_counter() - began
    return {
        "outputs": [[int(token) for token in row] for row in outputs],
        "seconds": seconds,
        "first": first[0] if first else None,
    }


def _answer(answers: IO[str], what: dict[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
