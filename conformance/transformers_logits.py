"""Logits from Hugging Face transformers: the reference from outside this project.

Needs the ``transformers`` package, which the engine itself does without.
"""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from enginebay.hookspecs.format import Checkpoint


def load_transformers(source: Checkpoint | Path) -> Any:
    """The model in float32 with eager attention.

    :param source: a model folder, read by transformers itself; or an opened checkpoint,
        whose (dequantized) tensors are put in a model of its configuration
    """
    import transformers

    transformers.logging.disable_progress_bar()
    options = {"attn_implementation": "eager", "dtype": torch.float32}
    if isinstance(source, Path):
        return transformers.AutoModelForCausalLM.from_pretrained(source, **options).eval()
    config = transformers.AutoConfig.for_model(**source.config)
    weights = {name: source.load(name) for name in source.tensors}
    kind = getattr(transformers, source.config["architectures"][0])
    model, report = kind.from_pretrained(
        None, config=config, state_dict=weights, output_loading_info=True, **options
    )
    if any(report[keys] for keys in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        msg = f"transformers can't take {source.location}: {report}"
        raise AssertionError(msg)
    return model.eval()


@torch.no_grad()
def transformers_logits(
    model: Any, token_ids: Sequence[int], *, chunk: int | None = None
) -> torch.Tensor:
    """Logits of every position of a fixed prefix.

    :param chunk: tokens a step over its cache; ``None``: one prefill without a cache
    :return: float32 [len(token_ids), vocab_size]
    """
    ids = torch.tensor([list(token_ids)])
    if chunk is None:
        logits: torch.Tensor = model(ids, use_cache=False).logits
        return logits[0].float()
    from transformers import DynamicCache

    known = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in known else "past_key_values"
    cache = {name: DynamicCache(config=model.config), "use_cache": True}
    parts = [model(part, **cache).logits[0].float() for part in torch.split(ids, chunk, dim=1)]
    return torch.cat(parts)
