"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values (arXiv 2407.10671)."""

from typing import Any

import msgspec

from enginebay import hookimpl
from enginebay.hookspecs.model import ModelContext, ModelFamily

from .llama_like import Defaults, LlamaLike
from .settings import Settings

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to set: everything comes from the model's configuration."""


def differences(settings: Settings) -> dict[str, Any]:
    """Biases, and the window when the configuration switches it on for all layers."""
    settings.require("mlp_bias", False, None)
    return {"qkv_bias": True, "sliding_window": sliding_window(settings)}


def sliding_window(settings: Settings) -> int | None:
    """Off by default; on, it needs to hold for every layer alike.

    The layers from ``max_window_layers`` on have it, unless ``layer_types`` lists them.
    """
    if not settings.boolean("use_sliding_window", default=False):
        return None
    if settings.config.get("sliding_window", 4096) is None:
        return None
    layers = settings.integer("num_hidden_layers")
    full = min(settings.integer("max_window_layers", 28, minimum=0), layers)
    kinds = settings.config.get("layer_types")
    if kinds is None:
        kinds = ["full_attention"] * full + ["sliding_attention"] * (layers - full)
    if set(kinds) == {"full_attention"}:
        return None
    if set(kinds) != {"sliding_attention"}:
        key = "layer_types" if settings.config.get("layer_types") else "max_window_layers"
        settings.fail(key, "layers that differ in their window are not supported")
    return settings.integer("sliding_window", 4096)


@hookimpl
def enginebay_model(options: Options, context: ModelContext) -> ModelFamily:
    """Build the family."""
    defaults = Defaults(max_positions=32768, num_kv_heads=32)
    return LlamaLike(("Qwen2ForCausalLM",), "Qwen2", defaults, differences)
