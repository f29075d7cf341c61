"""Tiny Hugging Face model folders with random weights, for parity and engine tests.

The weights are drawn so that logits have a standard deviation of about 3: far from
flat, and with margins that a wrong mask, rotation or norm visibly changes.
"""

import json
import math
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from .tiny_text import BOS_ID, EOS_ID, NUM_TOKENS, write_text

MODEL_TYPES: Final = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
LOGIT_SCALE: Final = 3.0


def write_tiny(
    folder: str | Path, architecture: str = "LlamaForCausalLM", seed: int = 0, **overrides: Any
) -> Path:
    """Write a model folder: configuration, float32 weights, tokenizer, chat template.

    :param architecture: one of ``MODEL_TYPES``
    :param seed: of the weights; equal arguments give equal bytes
    :param overrides: entries of ``config.json``, such as ``num_key_value_heads=1``
    :return: the folder
    """
    config = tiny_config(architecture, **overrides)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    write_model(target, config, tiny_tensors(config, seed))
    write_text(target)
    return target


def tiny_config(architecture: str = "LlamaForCausalLM", **overrides: Any) -> dict[str, Any]:
    """A ``config.json``: 2 layers, width 64, 4 heads of 16 on 2 KV heads, 300 tokens.

    ``head_dim`` follows ``hidden_size / num_attention_heads`` unless it is given.
    """
    if architecture not in MODEL_TYPES:
        msg = f"architecture {architecture!r} is not one of {', '.join(MODEL_TYPES)}"
        raise ValueError(msg)
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": MODEL_TYPES[architecture],
        "vocab_size": NUM_TOKENS,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "torch_dtype": "float32",
    }
    if architecture == "MistralForCausalLM":
        config["sliding_window"] = None
    if architecture.startswith("Qwen"):
        config["use_sliding_window"] = False
    config |= overrides
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config


def tiny_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random float32 tensors for ``config``, under Hugging Face names."""
    noise = torch.Generator().manual_seed(seed)
    return {name: _draw(name, shape, noise) for name, shape in tiny_shapes(config).items()}


def tiny_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of every tensor that ``config`` needs."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(config).items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


def _layer_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    outputs = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in outputs.items():
        shapes[f"{name}.weight"] = shape
        if _has_bias(name, config):
            shapes[f"{name}.bias"] = shape[:1]
    if config["model_type"] == "qwen3":
        shapes["self_attn.q_norm.weight"] = (config["head_dim"],)
        shapes["self_attn.k_norm.weight"] = (config["head_dim"],)
    shapes["input_layernorm.weight"] = (hidden,)
    shapes["post_attention_layernorm.weight"] = (hidden,)
    return shapes


def _has_bias(name: str, config: dict[str, Any]) -> bool:
    if name.startswith("mlp."):
        return bool(config.get("mlp_bias"))
    if config["model_type"] == "qwen2":
        return name != "self_attn.o_proj"
    if config["model_type"] == "mistral":
        return False
    return bool(config.get("attention_bias"))


def _draw(name: str, shape: tuple[int, ...], noise: torch.Generator) -> torch.Tensor:
    values = torch.randn(shape, generator=noise, dtype=torch.float32)
    if name.endswith("norm.weight"):
        return 1.0 + 0.2 * values
    if name.endswith(".bias"):
        return 0.3 * values
    # The embedding takes the head's scale, since it is the head when they are tied.
    gain = LOGIT_SCALE if name.endswith(("lm_head.weight", "embed_tokens.weight")) else 1.5
    return values * (gain / math.sqrt(shape[-1]))


def write_model(
    folder: Path,
    config: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    generation: dict[str, Any] | None = None,
) -> None:
    """Write ``config.json``, ``generation_config.json`` and ``model.safetensors``.

    ``generation``: the generation configuration; by default the EOS ids of ``config``.
    """
    if generation is None:
        generation = {key: config.get(key) for key in ("bos_token_id", "eos_token_id")}
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
