"""Stage ``logits``: models on the GPU against the reference kernels on the CPU.

Prompts of several lengths, then decodes with a new prompt among them. The comparison ends
where the drawn tokens part: from there on the inputs differ.
"""

import tempfile
from pathlib import Path
from typing import Any

from enginebay.conformance.tiny import write_tiny

from .engine import CPU, Place, Steps, on_gpu
from .stage import Report

SMALL = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {"sliding_window": 24},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {},
}
LENGTHS = (5, 40, 1)
DECODES = 6
CLOSE = 5e-3
"""Largest difference of logits in float32; their standard deviation is about 3."""


def run(report: Report, *, dry: bool, model: str) -> None:
    """Every family as a small model; the default model, if its file is given."""
    size = {"num_hidden_layers": 1} if dry else {}
    with tempfile.TemporaryDirectory() as folder:
        for name, changes in SMALL.items():
            path = str(write_tiny(Path(folder) / name, name, **changes, **size))
            report.part(name, lambda path=path: compare(path, on_gpu(dry)))
        report.part("bfloat16", lambda path=path: _half(path, on_gpu(dry, "bfloat16")))
    if model:
        report.part("default model", lambda: compare(model, on_gpu(dry)))


def compare(model: str, place: Place) -> tuple[dict[str, Any], str]:
    """:raises ValueError: the logits differ by more than ``CLOSE``"""
    wanted, given = Steps(model, CPU), Steps(model, place)
    vocabulary = wanted.context.spec.vocab_size
    prompts = {
        number: [(7 * number + 3 * at) % min(vocabulary, 200) for at in range(length)]
        for number, length in enumerate(LENGTHS)
    }
    later = {number: prompts.pop(number) for number in (len(LENGTHS) - 1,)}
    difference, compared = 0.0, 0
    for step in range(1 + DECODES):
        new = prompts if step == 0 else later if step == 2 else {}
        tokens = [each.run(new) for each in (wanted, given)]
        difference = max(difference, (wanted.logits[-1] - given.logits[-1]).abs().max().item())
        compared += len(tokens[0])
        if tokens[0] != tokens[1]:
            break
    if not difference <= CLOSE:  # NaN is not
        raise ValueError(f"logits differ by {difference:.2e}, {CLOSE:.0e} at most is right")
    facts = {"difference": difference, "compared": compared, "same_tokens": tokens[0] == tokens[1]}
    return facts, f"{compared} rows within {difference:.1e}"


def _half(model: str, place: Place) -> tuple[dict[str, Any], str]:
    """A dtype that only attention has: the stack must say which op nobody runs."""
    try:
        Steps(model, place)
    except Exception as error:  # noqa: BLE001 - told whatever it is
        return {"refused": str(error)}, f"refused: {str(error)[:160]}"
    return {"refused": ""}, "runs"
