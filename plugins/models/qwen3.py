"""Qwen3: Llama with a norm of every query and key head (arXiv 2505.09388)."""

from typing import Any

import msgspec

from enginebay import hookimpl
from enginebay.hookspecs.model import ModelContext, ModelFamily

from .llama_like import Defaults, LlamaLike
from .qwen2 import sliding_window
from .settings import Settings

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to set: everything comes from the model's configuration."""


def differences(settings: Settings) -> dict[str, Any]:
    """Head norms, optional biases, and the window under Qwen2's rules."""
    settings.require("mlp_bias", False, None)
    attention_bias = settings.boolean("attention_bias", default=False)
    return {
        "qk_norm": True,
        "qkv_bias": attention_bias,
        "output_bias": attention_bias,
        "sliding_window": sliding_window(settings),
    }


@hookimpl
def enginebay_model(options: Options, context: ModelContext) -> ModelFamily:
    """Build the family."""
    defaults = Defaults(max_positions=32768, num_kv_heads=32, head_dim=128)
    return LlamaLike(("Qwen3ForCausalLM",), "Qwen3", defaults, differences)
