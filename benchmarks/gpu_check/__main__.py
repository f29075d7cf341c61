"""Check and time everything that exists for GPUs, in less than 8 minutes.

    python -m benchmarks.gpu_check [--model PATH] [--out FILE] [--only tests,logits] [--dry]

Each stage is a process of its own with a time limit; one that fails or hangs is told and
costs the others nothing. Nothing is installed and nothing is fetched: what is missing is
named first (see the README beside this file). ``--dry`` rehearses on a CPU in Triton's
interpreter: small shapes, and times that mean nothing.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from .checkout import ROOT, lay_out, missing
from .stages import STAGES, Stage

BUDGET = 470
"""Seconds of all stages together."""
SLOWER = 4
"""How much more time a rehearsal gets: an interpreter works."""
TAIL = 1500
"""Characters kept of what a failed stage printed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages. :return: 0 when all of them passed"""
    options = _options(arguments)
    lacking = missing(options.dry)
    if lacking:
        print(f"missing here: {', '.join(lacking)}", file=sys.stderr)
    report = {"dry": options.dry, "missing": lacking, "stages": {}}
    patience = SLOWER if options.dry else 1
    end = time.monotonic() + patience * BUDGET
    with tempfile.TemporaryDirectory() as folder:
        environment = _environment(Path(folder), dry=options.dry)
        for stage in STAGES:
            if options.only and stage.name not in options.only:
                continue
            seconds = min(patience * stage.seconds, end - time.monotonic())
            told = run(_command(stage, options), environment, seconds)
            report["stages"][stage.name] = told
            print(_line(stage, told), flush=True)
            if options.out:
                options.out.write_text(json.dumps(report, indent=2))
    print(json.dumps(report))
    return int(any(not told["ok"] for told in report["stages"].values()))


def run(command: Sequence[str], environment: dict[str, str], seconds: float) -> dict:
    """Run one stage.

    :return: ``ok``, ``seconds``, and what the stage told last; with ``error`` and the end of
        its ``output`` when it did not come to its own end
    """
    began = time.monotonic()
    if seconds < 1:
        return {"ok": False, "seconds": 0.0, "error": "no time was left", "output": ""}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        output.seek(0)
        text = output.read()
    facts = {"seconds": round(time.monotonic() - began, 1), **told_last(text)}
    if code == 0:
        return {"ok": True, **facts}
    if code == 1 and facts.get("failed"):
        return {"ok": False, **facts}
    error = f"ended after {seconds:.0f} s" if code is None else f"exit status {code}"
    return {"ok": False, **facts, "error": error, "output": text[-TAIL:]}


def told_last(text: str) -> dict:
    """The last line of JSON that a stage printed; empty without one."""
    for line in reversed(text.splitlines()):
        if line.startswith('{"lines": '):
            try:
                return json.loads(line)
            except ValueError:
                continue  # cut off in the middle
    return {}


def _end(process: subprocess.Popen) -> None:
    """End a stage and whatever it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # all of it has ended
    process.wait()


def _command(stage: Stage, options: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.gpu_check.stage", stage.name]
    command += ["--dry"] if options.dry else []
    return [*command, "--model", options.model] if options.model else command


def _environment(folder: Path, *, dry: bool) -> dict[str, str]:
    paths = [str(ROOT)]
    if find_spec("enginebay") is None:
        paths.insert(0, str(lay_out(folder / "site")))
    inherited = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, *([inherited] if inherited else [])]),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # deterministic products ask for it
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop("TRITON_INTERPRET", None)
    return {**environment, "TRITON_INTERPRET": "1"} if dry else environment


def _line(stage: Stage, told: dict) -> str:
    """One line for people, and one a part."""
    head = f"{stage.name:<10} {'ok' if told['ok'] else 'FAILED':<7} {told['seconds']:>6.1f} s  "
    parts = [f"    {line}" for line in told.get("lines", ())]
    if "error" in told:
        parts += [f"    | {line}" for line in told["output"].splitlines()[-3:]]
    return "\n".join([head + told.get("error", stage.what), *parts])


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="the default model's file, where there is no network")
    parser.add_argument("--out", type=Path, help="write the report here after every stage")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--dry", action="store_true", help="rehearse without a GPU")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
