"""GGUF metadata, translated to the ``config.json`` that Hugging Face would have.

Keys are those of the GGUF specification under ``{architecture}.``; for the
architectures named below nothing that changes results is dropped silently.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from enginebay.errors import ModelError

from .gguf_rope import rope_entries
from .text_assets import token_ids

ARCHITECTURES: Final = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}
"""ggml's architecture -> Hugging Face's, and its model type."""
_FILE_TYPES: Final = {0: "float32", 1: "float16", 32: "bfloat16"}
"""``general.file_type`` of files without block-quantized weights."""


class Metadata:
    """A file's metadata; entries that are required or must be numbers are checked."""

    def __init__(self, path: Path, entries: Mapping[str, Any]) -> None:
        """:raises ModelError: the architecture is unknown"""
        self.path = path
        self.entries = entries
        self.architecture = str(entries.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            msg = (
                f"{path}: GGUF architecture {self.architecture!r} can't be read; "
                f"known are {', '.join(ARCHITECTURES)}"
            )
            raise ModelError(msg)

    def get(self, key: str, default: Any = None) -> Any:
        """The entry ``{architecture}.{key}``."""
        return self.entries.get(f"{self.architecture}.{key}", default)

    def number(self, key: str, default: float | None = None) -> Any:
        """A positive number that every layer shares.

        :raises ModelError: it is missing and has no default, or is none
        """
        value = self.get(key, default)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            msg = f"{self.path}: {self.architecture}.{key} is {value!r}; it must be one number > 0"
            raise ModelError(msg)
        # Floats are stored in 32 bits: 1e-5 comes back as 9.99999975e-06.
        return float(str(np.float32(value))) if isinstance(value, float) else value


def read_config(
    metadata: Metadata, shapes: Mapping[str, tuple[int, ...]], rope_factors: list[float] | None
) -> dict[str, Any]:
    """Translate the metadata.

    :param shapes: of the tensors, by Hugging Face name
    :param rope_factors: the file's divisors of the rotary frequencies, if it has them
    """
    _refuse(metadata)
    architecture, model_type = ARCHITECTURES[metadata.architecture]
    window = metadata.get("attention.sliding_window") or None
    if metadata.architecture == "llama" and window is not None:
        architecture, model_type = "MistralForCausalLM", "mistral"
    hidden, heads = metadata.number("embedding_length"), metadata.number("attention.head_count")
    head_dim = metadata.number("attention.key_length", hidden // heads)
    ends = [metadata.entries.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    embedding = shapes.get("model.embed_tokens.weight", (metadata.number("vocab_size", 1),))
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": embedding[0],
        "hidden_size": hidden,
        "intermediate_size": metadata.number("feed_forward_length"),
        "num_hidden_layers": metadata.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.number("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": metadata.number("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "lm_head.weight" not in shapes,
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in shapes,
        "mlp_bias": "model.layers.0.mlp.gate_proj.bias" in shapes,
        "bos_token_id": metadata.entries.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(
            dict.fromkeys(token_ids(str(metadata.path), "eos", [e for e in ends if e is not None]))
        ),
        "torch_dtype": _FILE_TYPES.get(metadata.entries.get("general.file_type", 0), "float32"),
        "sliding_window": window,
    }
    if model_type.startswith("qwen"):
        config["use_sliding_window"] = window is not None
    return config | rope_entries(metadata, head_dim, rope_factors)


def _refuse(metadata: Metadata) -> None:
    if metadata.get("expert_count"):
        msg = (
            f"{metadata.path}: a mixture of {metadata.get('expert_count')} experts; "
            "only dense models can be read from GGUF"
        )
        raise ModelError(msg)
    if metadata.entries.get("split.count", 1) > 1:
        msg = (
            f"{metadata.path}: one of {metadata.entries['split.count']} files of a split GGUF; "
            "join them first: `llama-gguf-split --merge`"
        )
        raise ModelError(msg)
