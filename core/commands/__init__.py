"""The command line: one file a command, imported when it is called.

``enginebay --help`` loads neither torch nor any plugin.
"""

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Final

COMMANDS: Final = {
    "run": "answer one prompt on the terminal",
    "chat": "talk to a model on the terminal",
    "serve": "serve the OpenAI API over HTTP",
    "keys": "make, list and revoke the API keys of a server",
    "plugins": "list the installed plugins",
    "explain": "show what each slot of a stack chose, and why others declined",
    "ledger": "plan a model's memory before it is loaded, and compare block sizes",
    "quantize": "quantize a model and write it to a folder",
    "conform": "judge a stack or a plugin by the conformance suite",
    "simulate": "compare policies on imagined hardware, or soak them in random worlds",
}


def parser() -> argparse.ArgumentParser:
    """The top level: it knows the commands' names and nothing of their options."""
    top = argparse.ArgumentParser(
        prog="enginebay",
        description="An LLM inference engine in which every part is a plugin.",
        epilog="`enginebay COMMAND --help` shows a command's options.",
    )
    top.add_argument("--version", action="store_true", help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run the command line. :return: the exit status"""
    words = sys.argv[1:] if arguments is None else arguments
    top = parser()
    chosen, _ = top.parse_known_args(words[:1])
    if chosen.version:
        from enginebay import __version__

        print(f"enginebay {__version__}")
        return 0
    if chosen.command is None:
        top.print_help()
        return 2
    command = import_module(f".{chosen.command}", __name__)
    own = argparse.ArgumentParser(
        prog=f"enginebay {chosen.command}", description=COMMANDS[chosen.command]
    )
    command.configure(own)
    return _run(command.run, own.parse_args(words[1:]))


def _run(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    from ..errors import EnginebayError

    try:
        return run(options)
    except EnginebayError as error:
        print(f"enginebay: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output left, as `head` does
        sys.stderr.close()
        return 141
