"""Show what a model will take of a device's memory, before anything is loaded."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import StackError
from ..ledger.block_sizes import contiguous, read_lengths, rounding
from ..ledger.planning import Asked, Numbers, plan_numbers, plan_stack
from ..ledger.table import block_table, plan_table
from ..stack import parse_size
from .options import add_stack, stack_of

if TYPE_CHECKING:
    from ..ledger.lines import Plan
    from ..stack import Stack

SHAPE = ("parameters", "layers", "kv_heads", "head_dim")
"""Options that describe a model in numbers; any of them does without a checkpoint."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_stack(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, sizes in bytes")
    parser.add_argument("--dtype", help="of weights and KV (default: the stack's; bfloat16)")
    asked = parser.add_argument_group("what is asked")
    asked.add_argument("--device-memory", metavar="SIZE", help="for example 40GiB")
    asked.add_argument("--tokens", type=int, default=0, help="of one request, output included")
    asked.add_argument("--requests", type=int, default=0, help="at the same time")
    asked.add_argument("--reserve", metavar="SIZE", default="0", help="memory to leave alone")
    asked.add_argument("--runtime", metavar="SIZE", help="measured peak; else it is estimated")
    shape = parser.add_argument_group("a model in numbers, instead of a checkpoint")
    shape.add_argument("--parameters", type=float, help="for example 7e9")
    shape.add_argument("--layers", type=int)
    shape.add_argument("--kv-heads", type=int)
    shape.add_argument("--head-dim", type=int)
    shape.add_argument("--block-size", type=int, default=16, help="tokens a block (default: 16)")
    sizes = parser.add_argument_group("block sizes against real lengths, instead of a model")
    sizes.add_argument("--blocks", metavar="SIZES", help="for example 4,8,16,32")
    sizes.add_argument(
        "--lengths", help="17,33,65 or a file: a length a line, or JSONL or CSV with a column"
    )
    sizes.add_argument(
        "--max-length", type=int, help="of contiguous regions (default: the longest length)"
    )


def run(options: argparse.Namespace) -> int:
    """Print a plan or a comparison. Exit status 1 when the plan exceeds the device."""
    if options.blocks or options.lengths:
        return _compare(options)
    asked = Asked(
        tokens=options.tokens,
        requests=options.requests,
        reserve=parse_size(options.reserve, "--reserve"),
        runtime=None if options.runtime is None else parse_size(options.runtime, "--runtime"),
        device_memory=parse_size(options.device_memory or "0", "--device-memory"),
    )
    if any(getattr(options, name) is not None for name in SHAPE):
        plan = plan_numbers(_numbers(options), asked)
    else:
        changes = {"engine__dtype": options.dtype} if options.dtype else {}
        plan = _plan(stack_of(options, **changes), asked)
    print(json.dumps(_facts(plan), indent=2) if options.json else plan_table(plan))
    return 1 if plan.device_memory and plan.left < 0 else 0


def _numbers(options: argparse.Namespace) -> Numbers:
    return Numbers(
        parameters=int(options.parameters or 0),
        dtype=options.dtype or "bfloat16",
        layers=options.layers or 0,
        kv_heads=options.kv_heads or 0,
        head_dim=options.head_dim or 0,
        block_size=options.block_size,
    )


def _plan(stack: Stack, asked: Asked) -> Plan:
    """The plan of a stack; its model is found and opened, and no tensor is read."""
    from ..assembler import Assembler
    from ..preparation import prepare
    from .terminal import progress_bar, quiet_logs

    quiet_logs()
    with progress_bar() as progress:
        return plan_stack(prepare(Assembler(stack, progress), to_run=False).context, asked)


def _facts(plan: Plan) -> dict[str, Any]:
    """A plan with what follows from it."""
    return {
        **msgspec.to_builtins(plan),
        "total": plan.total,
        "left": plan.left if plan.device_memory else None,
        "request_blocks": plan.request_blocks,
        "request_bytes": plan.request_bytes,
        "logical_kv": plan.requests * plan.tokens * plan.token_bytes,
        "fits": plan.fits if plan.device_memory and plan.tokens else None,
    }


def _compare(options: argparse.Namespace) -> int:
    if not options.lengths:
        raise StackError("--blocks needs --lengths: numbers such as 17,33,65, or a file")
    lengths = read_lengths(options.lengths)
    wanted = [word.strip() for word in (options.blocks or "4,8,16,32,64").split(",")]
    if not all(word.isdecimal() for word in wanted):
        raise StackError(f"--blocks {options.blocks!r}: sizes in tokens, for example 4,8,16")
    ways = [rounding(lengths, int(word)) for word in wanted]
    longest = max(lengths) if options.max_length is None else options.max_length
    whole = contiguous(lengths, longest)
    if options.json:
        told = [
            {**msgspec.to_builtins(way), "waste": way.waste, "kind": kind}
            for way, kind in [*((way, "blocks") for way in ways), (whole, "contiguous")]
        ]
        print(json.dumps({"sequences": len(lengths), "ways": told}, indent=2))
    else:
        print(block_table(ways, whole, len(lengths)))
    return 0
