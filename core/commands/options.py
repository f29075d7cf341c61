"""Options that several commands share: which stack, with what changed."""

import argparse
import tomllib
from typing import Any

from ..config import load_stack
from ..errors import StackError
from ..flow import SamplingParams
from ..stack import DEFAULT, Stack


def add_stack(parser: argparse.ArgumentParser, *, model: bool = True) -> None:
    """``--stack``, ``--model`` (unless the command takes it otherwise), ``--set``,
    ``--offline``."""
    parser.add_argument(
        "--stack", default=DEFAULT, help=f"a shipped stack or a file (default: {DEFAULT})"
    )
    if model:
        parser.add_argument("--model", help="folder, file, owner/name, or pypi:package")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of the stack, e.g. engine.block_size=32; may be repeated",
    )
    parser.add_argument("--offline", action="store_true", help="use cached models only")


def stack_of(options: argparse.Namespace, **more: Any) -> Stack:
    """The stack that the options describe.

    :param more: further overrides, with ``__`` for the dots
    :raises StackError: a ``--set`` is not KEY=VALUE, or the stack is wrong
    """
    changes: dict[str, Any] = {key.replace("__", "."): value for key, value in more.items()}
    for item in options.set:
        key, equals, text = item.partition("=")
        if not equals:
            raise StackError(f"--set {item!r} is not KEY=VALUE")
        changes[key.strip()] = _value(text.strip())
    if options.model:
        changes["engine.model"] = options.model
    if options.offline:
        changes["engine.offline"] = True
    return load_stack(options.stack, changes)


def _value(text: str) -> Any:
    """A TOML value; what is not one is taken as a bare string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """The usual sampling options of the terminal commands."""
    parser.add_argument(
        "--max-tokens", type=int, default=512, help="tokens to generate at most (default: 512)"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--stop", action="append", default=[], help="may be repeated")
    parser.add_argument("--system", help="a system message")


def sampling_of(options: argparse.Namespace) -> SamplingParams:
    """The sampling parameters that the options describe."""
    chosen = {"temperature": options.temperature, "top_p": options.top_p, "top_k": options.top_k}
    return SamplingParams(
        max_tokens=options.max_tokens,
        seed=options.seed,
        stop=tuple(options.stop),
        transforms={name: value for name, value in chosen.items() if value is not None},
    )
