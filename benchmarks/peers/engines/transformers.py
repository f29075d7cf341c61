"""Hugging Face transformers in float32: ``generate`` over one padded-free batch."""

from typing import Any

import torch
import transformers

from . import Facts, Mark, Setup


class Engine:
    """A model in eager PyTorch, with its own key-value cache."""

    def __init__(self, setup: Setup) -> None:
        torch.set_num_threads(setup.threads)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            setup.weights, dtype=torch.float32
        )
        self._model = model.eval()
        self._model.generation_config.eos_token_id = None
        self.facts = Facts(
            version=transformers.__version__,
            weights="float32",
            kv="float32",
            bits="float32",
            threads=torch.get_num_threads(),
        )

    def generate(self, prompts: list[list[int]], tokens: int, mark: Mark | None) -> list[list[int]]:
        """Continue all prompts at once; they must be of one length."""
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
                streamer=None if mark is None else Streamer(mark),
            )
        return [row[ids.shape[1] :] for row in out.tolist()]


class Streamer:
    """Passes on how many tokens have come; the prompt, which comes first, is none."""

    def __init__(self, mark: Mark) -> None:
        self._mark = mark
        self._count = -1

    def put(self, value: torch.Tensor) -> None:
        """The prompt, or a new token."""
        self._count += 1
        if self._count:
            self._mark(self._count)

    def end(self) -> None:
        """Nothing follows."""
