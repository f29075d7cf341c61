"""Serve the OpenAI API over HTTP."""

import argparse
import sys
from typing import Any

from .options import add_stack, stack_of


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--host", help="address to listen on (default: the stack's)")
    parser.add_argument("--port", type=int, help="port to listen on (default: the stack's)")
    parser.add_argument("--served-name", help="the model's name for callers")
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"]
    )
    add_stack(parser)


def run(options: argparse.Namespace) -> int:
    """Load the stack and serve until a signal."""
    changes: dict[str, Any] = {}
    if options.host is not None:
        changes["options__transports__http__host"] = options.host
    if options.port is not None:
        changes["options__transports__http__port"] = options.port
    if options.served_name:
        changes["engine__served_name"] = options.served_name
    stack = stack_of(options, **changes)  # before torch is loaded: a mistake is told at once
    from ..serving import serve
    from .terminal import progress_bar, quiet_logs

    quiet_logs(options.log_level)
    with progress_bar() as progress:
        serving = serve(stack, progress)
    print(f"{serving.assembly.name} loaded ({serving.told()})", file=sys.stderr, flush=True)
    return serving.wait()
