"""Tensor names and row orders: ggml's conventions translated to Hugging Face's."""

import re
from typing import Final

import numpy as np

_WHOLE: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_STORED: Final = re.compile(r"(?:blk\.(\d+)\.)?([a-z_]+)\.(weight|bias)")

ROPE_FACTORS: Final = "rope_freqs.weight"
"""Not a weight: the divisors of the rotary frequencies, part of the configuration."""


def hugging_face_name(stored: str) -> str:
    """The Hugging Face name of a GGUF tensor; an unknown name stays as it is."""
    match = _STORED.fullmatch(stored)
    if match is None:
        return stored
    layer, name, part = match.groups()
    table = _WHOLE if layer is None else _IN_LAYER
    if name not in table:
        return stored
    prefix = "" if layer is None else f"model.layers.{layer}."
    return f"{prefix}{table[name]}.{part}"


def half_split_rows(
    num_rows: int, num_heads: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Where each row of a rotated projection lies in a GGUF of the llama architecture.

    ggml rotates neighbouring rows there (Su et al.'s pairs), so its converter
    interleaved the two halves of each head that Hugging Face rotates against each other.

    :return: int64 [num_rows]; entry r is the stored row of Hugging Face's row r
    """
    stored = np.arange(num_rows).reshape(num_heads, num_rows // num_heads // 2, 2)
    return np.ascontiguousarray(stored.swapaxes(1, 2)).reshape(num_rows)
