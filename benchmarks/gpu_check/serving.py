"""Stage ``serving``: the engine on the device, at concurrency 1 and 16."""

import tempfile
import time
from typing import Any

from enginebay import LLM, SamplingParams
from enginebay.conformance.tiny import write_tiny

from .engine import on_gpu
from .stage import Report


def run(report: Report, *, dry: bool, model: str) -> None:
    """The default model when its file is given, else a small one of random weights."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = (
            model
            if model and not dry
            else str(write_tiny(folder, num_hidden_layers=1 if dry else 2))
        )
        with LLM(stack="cpu", overrides=on_gpu(dry).changes(chosen)) as llm:
            for concurrency in (1, 4 if dry else 16):
                report.part(
                    f"concurrency {concurrency}",
                    lambda count=concurrency: _serve(llm, count, 4 if dry else 64),
                )


def _serve(llm: LLM, concurrency: int, tokens: int) -> tuple[dict[str, Any], str]:
    """The faster of two runs."""
    sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    took = []
    for turn in range(2):
        prompts = [[(turn + 3 * n + at) % 200 for at in range(16)] for n in range(concurrency)]
        began = time.perf_counter()
        outputs = llm.generate(prompts, sampling)
        took.append(time.perf_counter() - began)
        if any(len(each.outputs[0].token_ids) != tokens for each in outputs):
            raise RuntimeError("a request ended early")
    rate = concurrency * tokens / min(took)
    return {"tokens_per_second": rate}, f"{rate:,.1f} tokens/s, 16 in and {tokens} out"
