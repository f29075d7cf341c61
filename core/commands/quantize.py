"""Quantize a model and write it to a folder, for this engine and for others."""

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

from ..errors import ModelError, PluginError, StackError
from ..stack import Stack
from .options import add_stack, stack_of

OPTIONS = ("alpha", "head", "ignore", "activations", "calibration", "calibration_tokens")
"""Passed on to the scheme where they are given."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", help="folder, file, owner/name, or pypi:package")
    parser.add_argument("--out", required=True, metavar="DIR", help="a new folder, or an empty one")
    parser.add_argument(
        "--scheme", default="smoothquant", help="a quant plugin (default: smoothquant)"
    )
    parser.add_argument(
        "--alpha",
        type=_alpha,
        help="how much of what is hard moves from activations into weights, 0 to 1, or 'search' "
        "for the best of each layer (default)",
    )
    parser.add_argument("--calibration", metavar="FILE", help="UTF-8 text; else English of Python")
    parser.add_argument("--calibration-tokens", type=int, metavar="N", help="of it at most")
    parser.add_argument("--activations", help="dynamic: a scale a token (default), or static")
    parser.add_argument("--head", help="the last layer: int8 (default) or float")
    parser.add_argument(
        "--ignore",
        action="append",
        metavar="PATTERN",
        help="leave layers in float, e.g. 'model.layers.0.*' or '*.down_proj'; may be repeated",
    )
    add_stack(parser, model=False)


def run(options: argparse.Namespace) -> int:
    """Calibrate, quantize, write; nothing of a half-written model stays."""
    stack = stack_of(options, **_scheme(options))  # before torch is loaded
    out = _free(Path(options.out).expanduser())
    from .terminal import progress_bar, quiet_logs

    quiet_logs()
    part = out.with_name(f".{out.name}.part-{os.getpid()}")
    try:
        part.mkdir(parents=True)
        with progress_bar() as progress:
            told = _write(stack, progress, part)
        part.rename(out)
    except OSError as error:
        msg = f"--out {out}: can't be written: {error}"
        raise ModelError(msg) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {size:,} bytes\ncalibrated on {told}")
    return 0


def _write(stack: Stack, progress: Any, folder: Path) -> str:
    from ..assembler import Assembler
    from ..hookspecs.quant import QuantContext, Writing
    from ..threads import configure_threads

    build = Assembler(stack, progress)
    build.load_all()
    configure_threads(stack.engine.threads)
    _, checkpoint = build.checkpoint()
    family, spec = build.model(checkpoint)
    context = QuantContext(dtype=stack.engine.dtype, device=stack.engine.device)
    quantizer = build.one("quant", context)
    if not isinstance(quantizer, Writing):
        msg = f"--scheme {stack.one('quant').name}: this quant plugin can't write a model"
        raise PluginError(f"{msg}; use smoothquant, or load the model with it at each start")
    return quantizer.write(spec, family, checkpoint, folder)


def _scheme(options: argparse.Namespace) -> dict[str, Any]:
    """The scheme and its options as overrides of the stack."""
    given = {name: getattr(options, name) for name in OPTIONS}
    changes = {
        f"options__quant__{options.scheme}__{name}": value
        for name, value in given.items()
        if value is not None
    }
    return {"quant": options.scheme, **changes}


def _free(out: Path) -> Path:
    """:raises StackError: something is there already"""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StackError(f"--out {out}: is not an empty folder; give a new one")
    return out.absolute()


def _alpha(text: str) -> float | str:
    if text == "search":
        return text
    try:
        return float(text)
    except ValueError as error:
        msg = f"{text!r} is neither a number from 0 to 1 nor 'search'"
        raise argparse.ArgumentTypeError(msg) from error
