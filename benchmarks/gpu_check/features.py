"""Stage ``features``: what requests ask for beside greedy tokens, on the device."""

import tempfile
from typing import Any

from enginebay import LLM, SamplingParams
from enginebay.conformance.tiny import write_tiny

from .engine import on_gpu
from .stage import Report

PROMPT = [5, 6, 7, 8, 9]
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "seed": 1},
    "top-k, top-p, min-p": {"temperature": 0.9, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "seed": 2},
    "penalties": {"frequency_penalty": 0.5, "presence_penalty": 0.3, "repetition_penalty": 1.1},
    "logit bias": {"logit_bias": {"7": 3.0}},
    "allowed tokens": {"allowed_token_ids": [5, 6, 7]},
    "min tokens": {"min_tokens": 4},
    "log-probabilities": {"logprobs": 3, "prompt_logprobs": 2},
    "several choices": {"n": 3, "temperature": 1.0, "seed": 3},
}


def run(report: Report, *, dry: bool, model: str) -> None:
    """Each feature by itself, then swapping."""
    with tempfile.TemporaryDirectory() as folder:
        changes = on_gpu(dry).changes(str(write_tiny(folder, num_hidden_layers=1 if dry else 2)))
        with LLM(stack="cpu", overrides={**changes, "engine.swap_memory": "1MiB"}) as llm:
            for name, fields in ASKED.items():
                report.part(name, lambda fields=fields: _ask(llm, fields))
            report.part("swapping", lambda: _swap(llm))


def _ask(llm: LLM, fields: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """:raises RuntimeError: the request ended with an error"""
    sampling = SamplingParams(**{"max_tokens": 6, "ignore_eos": True, **fields})
    output = llm.generate(PROMPT, sampling)
    ids = [list(each.token_ids) for each in output.outputs]
    if any(not each for each in ids):
        raise RuntimeError(f"nothing was generated: {output}")
    return {"token_ids": ids}, f"{sum(map(len, ids))} tokens"


def _swap(llm: LLM) -> tuple[dict[str, Any], str]:
    executor = llm.assembly.executor
    facts = {"slots": executor.num_swap_blocks, "seconds": executor.swap_seconds}
    return facts, f"{facts['slots']} slots, {1e6 * facts['seconds']:.0f} us a block there and back"
