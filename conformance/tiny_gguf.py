"""Tiny GGUF files, converted from tiny Hugging Face folders as ggml's converter does."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import tokenizers
import torch
from safetensors.torch import load_file

from .tiny_text import CHAT_TEMPLATE

Values = np.ndarray[Any, np.dtype[np.float32]]

_NAMES: Final = (
    ("model.layers.", "blk."),
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("input_layernorm", "attn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
)


def write_tiny_gguf(
    path: str | Path,
    folder: str | Path,
    kind: str = "F32",
    entries: Mapping[str, Any] | None = None,
) -> Path:
    """Convert a folder that ``write_tiny`` wrote.

    :param kind: ggml type of the matrices; vectors stay F32
    :param entries: metadata in place of, or beside, what the folder says; ``None`` as a
        value leaves an entry out
    :return: the file
    """
    source, target = Path(folder), Path(path)
    config = json.loads((source / "config.json").read_text())
    architecture = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    metadata = _model_entries(config, architecture) | _text_entries(source) | dict(entries or {})
    writer = gguf.GGUFWriter(target, metadata.get("general.architecture", architecture))
    for key, value in metadata.items():
        if value is not None and key != "general.architecture":
            _add(writer, key, value)
    for name, tensor in load_file(source / "model.safetensors").items():
        _add_tensor(writer, name, tensor, config, kind)
    if "rope_freqs.weight" in metadata:
        writer.add_tensor("rope_freqs.weight", np.float32(metadata["rope_freqs.weight"]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _model_entries(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    keys = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_theta"],
        "rope.dimension_count": config["head_dim"],
    }
    return {f"{architecture}.{key}": value for key, value in keys.items()}


def _text_entries(source: Path) -> dict[str, Any]:
    tokenizer = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    ids = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    control = tokenizer.get_added_tokens_decoder()
    model = json.loads(tokenizer.to_str())["model"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [token for token, _ in ids],
        "tokenizer.ggml.token_type": [3 if number in control else 1 for _, number in ids],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif key != "rope_freqs.weight":
        writer.add_array(key, value)


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor, config: Mapping[str, Any], kind: str
) -> None:
    values: Values = tensor.numpy()
    if config["model_type"] in ("llama", "mistral"):
        for projection, heads in (("q_proj", "attention"), ("k_proj", "key_value")):
            if projection in name:
                values = interleave_halves(values, config[f"num_{heads}_heads"])
    stored = name
    for theirs, ours in _NAMES:
        stored = stored.replace(theirs, ours)
    if values.ndim == 1 or kind == "F32":
        writer.add_tensor(stored, values)
        return
    type_ = gguf.GGMLQuantizationType[kind]
    writer.add_tensor(stored, gguf.quants.quantize(values, type_), raw_dtype=type_)


def interleave_halves(values: Values, num_heads: int) -> Values:
    """Order the rows of a rotated projection in pairs, as ggml's llama models need.

    Of each head, row i and row i + head_dim / 2 come to stand side by side.
    """
    heads = np.split(values, num_heads)
    halves = [np.split(head, 2) for head in heads]
    pairs = [
        row for upper, lower in halves for both in zip(upper, lower, strict=True) for row in both
    ]
    return np.stack(pairs)
