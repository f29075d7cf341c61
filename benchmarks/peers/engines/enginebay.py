"""Enginebay: a stack in this process, with its prefix cache off."""

from importlib.metadata import version

from enginebay import LLM, SamplingParams
from enginebay.config import load_stack
from enginebay.flow import Delta, TokenPrompt
from enginebay.threads import choose_threads

from . import Facts, Mark, Setup

FLOAT = ("none", "float")
"""What a quantizer calls weights that it leaves as they are."""


class Engine:
    """One stack."""

    def __init__(self, setup: Setup) -> None:
        """:raises enginebay.errors.EnginebayError: the stack can't be built"""
        changes = {
            "engine.model": setup.weights,
            "engine.threads": setup.threads,
            "allocator": "paged",
        }
        stack = load_stack(setup.variant, changes)
        self._llm = LLM(stack=stack)
        assembly, dtype = self._llm.assembly, stack.engine.dtype
        report = assembly.quantizer.report()
        plain = report.scheme in FLOAT
        pool = {str(each.memory.dtype) for each in assembly.executor.holdings("kv")}
        self.facts = Facts(
            version=version("enginebay"),
            weights=dtype if plain else f"{report.scheme}, {dtype} else",
            kv=" and ".join(sorted(name.removeprefix("torch.") for name in pool)),
            bits=dtype if plain else "4-bit" if "int4" in report.scheme else "8-bit",
            threads=choose_threads(stack.engine.threads).count,
        )

    def generate(self, prompts: list[list[int]], tokens: int, mark: Mark | None) -> list[list[int]]:
        """Continue all prompts at once."""
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0)
        if mark is None:
            answers = self._llm.generate([tuple(prompt) for prompt in prompts], sampling)
            return [list(answer.outputs[0].token_ids) for answer in answers]
        ids: list[int] = []
        for event in self._llm.stream(TokenPrompt(token_ids=tuple(prompts[0])), sampling):
            if isinstance(event, Delta):
                ids.extend(event.token_ids)
                mark(len(ids))
        return [ids]
