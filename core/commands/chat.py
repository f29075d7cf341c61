"""Talk to a model on the terminal."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from ..errors import EnginebayError
from ..flow import ChatPrompt
from .options import add_sampling, add_stack, sampling_of, stack_of

if TYPE_CHECKING:
    from ..llm import LLM

HELP = "/new starts over, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_sampling(parser)
    add_stack(parser)


def run(options: argparse.Namespace) -> int:
    """Read lines, stream answers, keep the conversation."""
    stack = stack_of(options)  # before torch is loaded: a mistake is told at once
    from ..llm import LLM
    from .terminal import progress_bar, quiet_logs

    quiet_logs()
    _line_editing()
    with progress_bar() as progress:
        llm = LLM(stack=stack, progress=progress)
    with llm:
        print(f"{llm.assembly.name}: {HELP}", file=sys.stderr)
        _converse(llm, options)
    return 0


def _converse(llm: LLM, options: argparse.Namespace) -> None:
    beginning = [{"role": "system", "content": options.system}] if options.system else []
    messages: list[dict[str, Any]] = list(beginning)
    while True:
        try:
            line = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if line == "/exit":
            return
        if line == "/new":
            messages = list(beginning)
        elif line.startswith("/"):
            print(HELP, file=sys.stderr)
        elif line:
            _turn(llm, options, messages, line)


def _turn(llm: LLM, options: argparse.Namespace, messages: list[dict[str, Any]], line: str) -> None:
    """One question and its answer; a turn that fails leaves the conversation as it was."""
    from .terminal import show

    asked = [*messages, {"role": "user", "content": line}]
    events = llm.stream(ChatPrompt(messages=tuple(asked)), sampling_of(options))
    try:
        text, _, error = show(events)
    except KeyboardInterrupt:
        events.close()  # cancels the request
        print()
        return
    except EnginebayError as failure:
        print(f"enginebay: {failure}", file=sys.stderr)
        return
    if error:
        print(f"enginebay: {error}", file=sys.stderr)
        return
    messages[:] = [*asked, {"role": "assistant", "content": text}]


def _line_editing() -> None:
    """Arrow keys and history in ``input``, where Python was built with readline."""
    try:
        import readline  # noqa: F401
    except ImportError:
        return
