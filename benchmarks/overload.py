"""Overload: goodput under an SLO at half, once and ten times what a real server can do.

    python -m benchmarks.overload --model PATH [--count 500] [--tokens 32] [--slo 20]

The server and the load generator (``benchmarks.poisson``) are processes of their own. A
closed loop finds the capacity first. Prints a line for each load and one JSON object, and
exits with 1 when a promise is broken: goodput at the highest load within 25 % of the best
at a lower one, no timeout, refusals in under 100 ms (their 99th percentile).
"""

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

READY_SECONDS = 180
SHARE = 0.75
REFUSAL_MS = 100.0


def main() -> int:
    """Measure, print, judge."""
    options = _options()
    server, url = _serve(options)
    try:
        model = _get(f"{url}/v1/models")["data"][0]["id"]
        capacity = _capacity(options, url, model)
        print(f"capacity {capacity:.2f} requests a second", file=sys.stderr)
        before = _rss(server.pid)
        rows = [_row(options, url, model, load, capacity, server.pid) for load in options.loads]
        after = _rss(server.pid)
    finally:
        server.terminate()
        server.wait(timeout=60)
    broken = _broken(rows)
    report = {
        "cpus": os.cpu_count(),
        "machine": platform.processor() or platform.machine(),
        "capacity_per_second": round(capacity, 3),
        "tokens": options.tokens,
        "slo_seconds": options.slo,
        "server_rss_mib_before_and_after": [before, after],
        "loads": rows,
        "broken": broken,
    }
    print(json.dumps(report, indent=2))
    return 1 if broken else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="path of a model (default: the stack's)")
    parser.add_argument("--stack", default="cpu")
    parser.add_argument("--set", action="append", default=[], help="as of enginebay serve")
    parser.add_argument("--count", type=int, default=500, help="requests at the highest load")
    parser.add_argument("--lower-count", type=int, default=80, help="requests at each other")
    parser.add_argument("--warm", type=int, default=64, help="requests that find the capacity")
    parser.add_argument("--concurrency", type=int, default=32, help="of those, at a time")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--slo", type=float, default=20.0, help="seconds to the whole answer")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 1.0, 10.0])
    return parser.parse_args()


def _capacity(options: argparse.Namespace, url: str, model: str) -> float:
    """Requests a second of a closed loop; a first short one warms up."""
    common = ["--concurrency", str(options.concurrency), "--slo", "600"]
    _generate(options, url, model, ["--count", str(options.concurrency), *common])
    found = _generate(options, url, model, ["--count", str(options.warm), *common])
    if found["done"] != options.warm:
        msg = f"the closed loop that finds the capacity did not go well: {found}"
        raise RuntimeError(msg)
    return float(found["goodput_per_second"])


def _row(
    options: argparse.Namespace, url: str, model: str, load: float, capacity: float, pid: int
) -> dict:
    count = options.count if load == max(options.loads) else options.lower_count
    before = _rss(pid)
    given = ["--count", str(count), "--rate", str(load * capacity), "--slo", str(options.slo)]
    found = _generate(options, url, model, given)
    row = {"load": load, **found, "server_rss_growth_mib": round(_rss(pid) - before, 1)}
    print(
        f"load {load:g}x: goodput {row['goodput_per_second']}/s, {row['done']} in time, "
        f"{row['late'] + row['cut']} too late, {row['refused']} refused "
        f"(p99 {row['refusal_ms_p99']} ms), {row['timeout']} timeouts, {row['error']} errors, "
        f"RSS {row['server_rss_growth_mib']:+} MiB, generator {row['generator_cpu_share']} CPU",
        file=sys.stderr,
    )
    return row


def _broken(rows: list[dict]) -> list[str]:
    """The promises that the measurement broke, in words."""
    *lower, highest = sorted(rows, key=lambda row: row["load"])
    best = max((row["goodput_per_second"] for row in lower), default=0.0)
    broken = []
    if highest["goodput_per_second"] < SHARE * best:
        broken.append(f"goodput {highest['goodput_per_second']} is below {SHARE} of {best}")
    for row in rows:
        if row["timeout"] or row["error"]:
            broken.append(f"{row['timeout']} timeouts, {row['error']} errors at {row['load']}x")
        if (row["refusal_ms_p99"] or 0.0) > REFUSAL_MS:
            broken.append(f"refusals took {row['refusal_ms_p99']} ms at {row['load']}x")
    return broken


def _generate(options: argparse.Namespace, url: str, model: str, given: list[str]) -> dict:
    command = [sys.executable, "-m", "benchmarks.poisson", "--url", url, "--model", model]
    command += ["--tokens", str(options.tokens), *given]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return dict(json.loads(done.stdout))


def _serve(options: argparse.Namespace) -> tuple[subprocess.Popen, str]:
    """Start a server of its own process and wait until it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "enginebay", "serve", "--port", str(port)]
    command += ["--host", "127.0.0.1", "--stack", options.stack, "--log-level", "error"]
    command += ["--model", options.model] if options.model else []
    command += [part for item in options.set for part in ("--set", item)]
    server, url = subprocess.Popen(command), f"http://127.0.0.1:{port}"
    began = time.perf_counter()
    while time.perf_counter() - began < READY_SECONDS and server.poll() is None:
        try:
            _get(f"{url}/v1/models")
            return server, url
        except OSError:
            time.sleep(0.1)
    server.kill()
    msg = f"the server was not ready within {READY_SECONDS} s"
    raise RuntimeError(msg)


def _get(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return dict(json.load(answer))


def _rss(pid: int) -> float:
    """Resident memory of a process in MiB, as Linux tells it; 0 elsewhere."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(x.split()[1]) / 1024 for x in lines if x.startswith("VmRSS")), 0.0)


if __name__ == "__main__":
    sys.exit(main())
