"""Answer one prompt on the terminal."""

import argparse
import sys
import time

from ..flow import ChatPrompt, Prompt, TextPrompt
from .options import add_sampling, add_stack, sampling_of, stack_of


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("prompt", help="the prompt; - reads standard input")
    parser.add_argument("--raw", action="store_true", help="continue the text, no chat template")
    parser.add_argument("--stats", action="store_true", help="tell times and rates afterwards")
    add_sampling(parser)
    add_stack(parser)


def run(options: argparse.Namespace) -> int:
    """Load the stack, stream the answer."""
    stack = stack_of(options)  # before torch is loaded: a mistake is told at once
    from ..llm import LLM
    from .terminal import progress_bar, quiet_logs, show

    quiet_logs()
    began = time.perf_counter()
    with progress_bar() as progress:
        llm = LLM(stack=stack, progress=progress)
    with llm:
        ready = time.perf_counter()
        prompt = _prompt(options, chat=bool(llm.assembly.checkpoint.text.templates))
        _, usage, error = show(llm.stream(prompt, sampling_of(options)))
        seconds = time.perf_counter() - ready
    if error:
        print(f"enginebay: {error}", file=sys.stderr)
        return 1
    if options.stats and usage:
        rate = usage.completion_tokens / seconds
        print(
            f"ready in {ready - began:.1f} s; {usage.prompt_tokens} prompt and "
            f"{usage.completion_tokens} output tokens in {seconds:.1f} s ({rate:.0f} tokens/s)",
            file=sys.stderr,
        )
    return 0


def _prompt(options: argparse.Namespace, *, chat: bool) -> Prompt:
    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    if options.raw or not chat:
        return TextPrompt(text=text)
    system = [{"role": "system", "content": options.system}] if options.system else []
    return ChatPrompt(messages=(*system, {"role": "user", "content": text}))
