"""An open-loop load generator: requests leave on time, whatever becomes of the others.

    python -m benchmarks.poisson --url http://127.0.0.1:8000 --model NAME --rate 20 --count 500

Arrivals are a Poisson process. Each request has a connection of its own and carries the
SLO as its deadline. Prints one JSON object; ``benchmarks.overload`` reads it.
"""

import argparse
import asyncio
import json
import random
import time
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Outcome:
    """What became of one request. Times in seconds."""

    kind: str
    """``done``, ``late`` (past the SLO), ``cut`` (by its deadline), ``refused``,
    ``timeout`` or ``error``."""
    began: float
    seconds: float
    retry_after: float = 0.0
    plugin: str = ""


def main() -> None:
    """Offer the load and print what became of it."""
    options = _options()
    began, used = time.perf_counter(), time.process_time()
    outcomes = asyncio.run(_offer(options))
    wall = time.perf_counter() - began
    share = (time.process_time() - used) / wall
    print(json.dumps({**_summary(outcomes, began), "generator_cpu_share": round(share, 3)}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rate", type=float, default=0.0, help="a second; 0: closed loop")
    parser.add_argument("--concurrency", type=int, default=16, help="of the closed loop")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--slo", type=float, default=20.0, help="seconds to the whole answer")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


async def _offer(options: argparse.Namespace) -> list[Outcome]:
    numbers = iter(range(options.count))
    if not options.rate:

        async def one_after_another() -> list[Outcome]:
            return [await _ask(options, number) for number in numbers]

        workers = [one_after_another() for _ in range(options.concurrency)]
        return [outcome for done in await asyncio.gather(*workers) for outcome in done]
    noise, begin, at = random.Random(options.seed), time.perf_counter(), 0.0
    tasks = []
    for number in numbers:
        at += noise.expovariate(options.rate)
        await asyncio.sleep(max(begin + at - time.perf_counter(), 0.0))
        tasks.append(asyncio.create_task(_ask(options, number)))
    return list(await asyncio.gather(*tasks))


async def _ask(options: argparse.Namespace, number: int) -> Outcome:
    began = time.perf_counter()
    try:
        status, answer = await asyncio.wait_for(_post(options, number), 3 * options.slo)
    except TimeoutError:
        return Outcome("timeout", began, time.perf_counter() - began)
    except (OSError, ValueError):
        return Outcome("error", began, time.perf_counter() - began)
    seconds = time.perf_counter() - began
    if status in (429, 503):
        error = answer["error"]
        return Outcome("refused", began, seconds, error["retry_after"], str(error.get("plugin")))
    if status != 200:
        return Outcome("error", began, seconds)
    if answer["usage"]["completion_tokens"] < options.tokens:
        return Outcome("cut", began, seconds)
    return Outcome("done" if seconds <= options.slo else "late", began, seconds)


async def _post(options: argparse.Namespace, number: int) -> tuple[int, dict]:
    """One completion. :raises OSError, ValueError: no answer, or none in HTTP and JSON"""
    where = urlsplit(options.url)
    body = json.dumps(
        {
            "model": options.model,
            "prompt": f"Request number {number}: tell me something about the weather.",
            "max_tokens": options.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "deadline": options.slo,
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {where.netloc}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        writer.write(head.encode() + body)
        answer = await reader.read(-1)
    finally:
        writer.close()
    status, _, rest = answer.partition(b"\r\n")
    return int(status.split()[1]), json.loads(rest.partition(b"\r\n\r\n")[2])


def _summary(outcomes: list[Outcome], began: float) -> dict:
    """Counts, goodput over the time from the first arrival to the last good answer."""
    kinds = ("done", "late", "cut", "refused", "timeout", "error")
    by_kind = {kind: [o for o in outcomes if o.kind == kind] for kind in kinds}
    good, refused = by_kind["done"], by_kind["refused"]
    last = max((o.began + o.seconds for o in good), default=0.0)
    first = min((o.began for o in outcomes), default=began)
    waits = [o.retry_after for o in refused]
    return {
        "offered": len(outcomes),
        **{kind: len(some) for kind, some in by_kind.items()},
        "goodput_per_second": round(len(good) / (last - first), 3) if good else 0.0,
        "answer_seconds_p50": _quantile([o.seconds for o in good], 0.5),
        "answer_seconds_p99": _quantile([o.seconds for o in good], 0.99),
        "refusal_ms_p50": _quantile([1000 * o.seconds for o in refused], 0.5),
        "refusal_ms_p99": _quantile([1000 * o.seconds for o in refused], 0.99),
        "refusal_ms_max": _quantile([1000 * o.seconds for o in refused], 1.0),
        "retry_after_min_max": [min(waits), max(waits)] if waits else [],
        "refused_by": {name: sum(o.plugin == name for o in refused) for name in _names(refused)},
    }


def _names(refused: list[Outcome]) -> list[str]:
    return sorted({outcome.plugin for outcome in refused})


def _quantile(values: list[float], share: float) -> float | None:
    """Nearest rank; ``None`` of nothing."""
    if not values:
        return None
    return round(sorted(values)[min(int(share * len(values)), len(values) - 1)], 2)


if __name__ == "__main__":
    main()
